"""`paceline db clean`: deletes old records in batches, while other processes run."""

import sys
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import options, output
from scheduler.cli.lazy import Later

if TYPE_CHECKING:
    from scheduler.services import prune
    from scheduler.store.upkeep import retention
else:
    prune = Later("scheduler.services.prune")
    retention = Later("scheduler.store.upkeep.retention")

#: Kinds of records that are listed even if none is deleted.
ALWAYS = ("runs", "task_instances")


@click.command()
@click.option("--before", type=options.MOMENT, required=True, help="Delete records that ended before this time.")
@click.option("--logs", is_flag=True, help="Also delete the log folders of the runs on this machine.")
@click.option("--dry-run", is_flag=True, help="Count the records without deleting them.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.as_json
def clean(*, before: datetime, logs: bool, dry_run: bool, yes: bool, json_wanted: bool) -> None:
    """Delete finished runs with all their records, and other old records. Safe to run at any time.

    The last run of each DAG that was not triggered manually stays, as do runs that later runs depend on. The [retention] settings
    run the same cleanup automatically.
    """
    engine = options.engine()
    if dry_run or not (yes or json_wanted or not sys.stdin.isatty()):
        counts = options.transact(retention.count, before)
        if dry_run:
            _print(counts, before, json_wanted=json_wanted, done=False)
            return
        _print(counts, before, json_wanted=False, done=False)
        click.confirm("Delete them?", abort=True)
    deleted: Counter[str] = Counter(dict.fromkeys((*ALWAYS, *retention.KINDS), 0))
    for kind, batch in prune.everything(engine, before):
        deleted[kind] += batch.deleted
        deleted["task_instances"] += sum(run.instances for run in batch.runs)
        prune.delete_data(options.settings(), batch.runs)
        if logs:
            prune.delete_logs(options.settings().logs_folder, batch.runs)
    _print(deleted, before, json_wanted=json_wanted, done=True)


def _print(counts: Mapping[str, int], before: datetime, *, json_wanted: bool, done: bool) -> None:
    if json_wanted:
        shown: dict[str, Any] = {"before": before, "dry_run": not done, "deleted" if done else "would_delete": dict(counts)}
        output.print_json(shown)
        return
    rows = [{"what": kind.replace("_", " "), "rows": count} for kind, count in counts.items() if count or kind in ALWAYS]
    output.table(rows, ["what", "rows"], empty="Nothing.")
    output.say("Deleted." if done else "Nothing is deleted yet.")
