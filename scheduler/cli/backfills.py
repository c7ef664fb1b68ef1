"""`paceline backfills`: creates and manages backfills."""

from datetime import datetime
from typing import Any

import click

from paceline import states
from scheduler.cli import lazy, options, output

COLUMNS = ["id", "dag_id", "state", "from_date", "to_date", "total", "waiting", "left_out", "queued", "running", "success",
           "failed"]  # fmt: skip
DATES = ["ordinal", "logical_date", "state", "run_id", "started_at", "ended_at", "reason"]
#: Backfills and dates in a table without --limit. --json prints all.
SCREENFUL = 50

backfill_id = click.argument("backfill_id", metavar="ID", type=click.IntRange(1, 2**63 - 1))


@click.group(cls=lazy.NounGroup)
def backfills() -> None:
    """Create, list, show, pause, resume and cancel backfills."""


@backfills.command()
@options.dag
@click.option("--from", "first", type=options.MOMENT, required=True, help="First logical date.")
@click.option("--to", "last", type=options.MOMENT, required=True, help="Last logical date.")
@click.option(
    "--max-active-runs",
    type=click.IntRange(1, 10_000),
    default=states.BACKFILL_MAX_ACTIVE_RUNS,
    show_default=True,
    help="Maximum number of active runs of this backfill. Scheduled runs do not count.",
)
@click.option(
    "--reprocess",
    type=click.Choice(list(states.REPROCESS)),
    default="none",
    show_default=True,
    help="Existing runs to clear and run again.",
)
@click.option("--reverse", is_flag=True, help="Start with the newest date.")
@click.option("--dry-run", is_flag=True, help="Count the runs that would be created, without creating them.")
@click.option("--verbose", is_flag=True, help="With --dry-run, list each date.")
@options.conf
@options.as_json
def create(
    dag_id: str,
    *,
    first: datetime,
    last: datetime,
    max_active_runs: int,
    reprocess: str,
    reverse: bool,
    dry_run: bool,
    verbose: bool,
    conf: dict[str, Any] | None,
    given: tuple[tuple[str, str], ...],
) -> None:
    """Create the missing scheduled runs of a DAG between two dates, both included."""
    from scheduler.actions import runs as actions
    from scheduler.store.actions.backfills import BackfillRequest
    from scheduler.store.read import reads

    # Read first: if the DAG does not exist, the error message suggests a similar name.
    dag = options.transact(reads.dag, dag_id)
    wanted = BackfillRequest(
        dag_id=dag_id,
        first=first,
        last=last,
        max_active_runs=max_active_runs,
        reprocess=reprocess,
        reverse=reverse,
        conf=options.with_params(conf, given, dag["params"]),
    )
    if dry_run:
        _show_plan(actions.preview_backfill(options.actor(), wanted), dag["version"], verbose=verbose)
        return
    created = actions.create_backfill(options.actor(), wanted)
    if dag["is_paused"]:
        output.say(f"DAG {dag_id} is paused: the backfill waits until `paceline dags unpause {dag_id}`.")
    left_out = f", {created['left_out']} left out" if created["left_out"] else ""
    output.result(
        created, f"Backfill {created['id']} of DAG {dag_id}: {output.count(created['waiting'], 'run')} to create{left_out}."
    )


@backfills.command("list")
@click.option("--dag", "dag_id", metavar="DAG", help="Only backfills of this DAG.")
@click.option("--limit", type=click.IntRange(min=1), help=f"Show only the newest N. Without --json, the default is {SCREENFUL}.")
@options.as_table
def list_(dag_id: str | None, limit: int | None) -> None:
    """List backfills with the number of runs in each state, newest first."""
    from scheduler.store.actions import backfills as store

    limit = limit if limit or output.json_wanted() else SCREENFUL
    output.listing(options.transact(store.backfills, dag_id=dag_id, limit=limit), COLUMNS, empty="No backfills.")


@backfills.command()
@backfill_id
@options.as_json
def show(backfill_id: int) -> None:
    """Show the progress of a backfill and the result for each date."""
    from scheduler.store.actions import backfills as store

    row = options.transact(store.backfill, backfill_id)
    if output.json_wanted():
        output.print_json(row)
        return
    output.facts({name: value for name, value in row.items() if name != "runs"} | {"progress": progress(row)})
    _show_dates(row["runs"])


@backfills.command()
@backfill_id
@options.as_json
def pause(backfill_id: int) -> None:
    """Pause a backfill: create and start no more runs. Running runs continue."""
    from scheduler.actions import runs as actions

    changed = actions.pause_backfill(options.actor(), backfill_id)
    _say(backfill_id, "is paused" if changed else "was paused already")


@backfills.command()
@backfill_id
@options.as_json
def resume(backfill_id: int) -> None:
    """Resume a paused backfill."""
    from scheduler.actions import runs as actions

    changed = actions.resume_backfill(options.actor(), backfill_id)
    _say(backfill_id, "continues" if changed else "was not paused")


@backfills.command()
@backfill_id
@options.yes
@options.as_json
def cancel(backfill_id: int, *, yes: bool) -> None:
    """Cancel a backfill: drop its pending dates and fail its queued runs. Running runs continue."""
    from scheduler.actions import runs as actions
    from scheduler.store.actions import backfills as store

    options.transact(store.backfill, backfill_id)
    options.confirm(f"Cancel backfill {backfill_id}?", yes)
    row = actions.cancel_backfill(options.actor(), backfill_id)
    running = f"; {output.count(row['running'], 'run')} still running" if row["running"] else ""
    _say(backfill_id, f"is canceled{running}")


def progress(row: dict[str, Any]) -> str:
    """Describe the progress of a backfill: `12 of 20 done (60 %), 1 failed, 3 left out`."""
    done = row["success"] + row["failed"] + row["left_out"]
    parts = [f"{done} of {row['total']} done ({100 * done // max(row['total'], 1)} %)"]
    parts += [f"{row[name]} {name.replace('_', ' ')}" for name in ("failed", "left_out", "running", "queued") if row[name]]
    return ", ".join(parts)


def _show_plan(dates: list[dict[str, Any]], version: int, *, verbose: bool) -> None:
    """Print the dates of a backfill that is not created, or their number."""
    if verbose or output.json_wanted():
        _show_dates(dates)
    if not output.json_wanted():
        left_out = sum(date["state"] == "left_out" for date in dates)
        created = output.count(len(dates) - left_out, "run")
        click.echo(f"{created} would be created, {left_out} left out, DAG version {version}. Nothing is created yet.")


def _show_dates(rows: list[dict[str, Any]]) -> None:
    shown = rows if output.json_wanted() else rows[:SCREENFUL]
    columns = [name for name in DATES if name in rows[0] and any(row[name] is not None for row in shown)] if rows else DATES
    output.listing(shown, columns, empty="No dates.")
    if len(rows) > len(shown):
        output.say(f"These are the first {SCREENFUL} of {len(rows)} dates; --json shows all.")


def _say(backfill_id: int, what: str) -> None:
    from scheduler.store.actions import backfills as store

    if output.json_wanted():
        output.print_json(options.transact(store.backfill, backfill_id))
    else:
        click.echo(f"Backfill {backfill_id} {what}.")
