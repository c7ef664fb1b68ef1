"""`paceline dags next`: shows the next runs of a schedule."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from scheduler.cli import options, output
from scheduler.cli.lazy import Later

if TYPE_CHECKING:
    from scheduler.store.dags import schedules
else:
    schedules = Later("scheduler.store.dags.schedules")

COLUMNS = ["run_after", "logical_date", "data_interval_start", "data_interval_end"]


@click.command("next")
@click.argument("dag_id", metavar="DAG")
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of runs.")
@options.as_json
def next_runs(dag_id: str, count: int, json_wanted: bool) -> None:
    """Show when the schedule of a DAG creates its next runs."""
    rows = [asdict(times) for times in options.transact(schedules.upcoming, dag_id, count=count)]
    if json_wanted:
        output.print_json(rows)
    else:
        output.table(rows, COLUMNS, empty=f"The schedule of DAG {dag_id} creates no further runs.")
