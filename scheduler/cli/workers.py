"""`paceline workers`: lists workers."""

from typing import TYPE_CHECKING

import click

from scheduler.cli import options, output
from scheduler.cli.lazy import Later

if TYPE_CHECKING:
    from scheduler.store.queries import overview
else:
    overview = Later("scheduler.store.queries.overview")


@click.group()
def workers() -> None:
    """List workers."""


@workers.command("list")
@click.option("--all", "all_", is_flag=True, help="Include stopped workers.")
@options.as_json
def list_(all_: bool, json_wanted: bool) -> None:
    """List workers with their queues and heartbeats."""
    timeout_s = options.settings().worker.heartbeat_timeout
    rows = options.transact(overview.processes, kind="worker", silent_after_s=timeout_s, stopped=all_)
    if json_wanted:
        output.print_json(rows)
    else:
        columns = ["name", "state", "queues", "concurrency", "running", "host", "pid", "started_at", "heartbeat_at"]
        output.table(rows, columns, empty="No worker runs: start one with `paceline worker`.")
