"""`paceline tasks xcoms`: prints the XComs of a task instance, with the rows and columns of returned DataFrames."""

import json
from typing import TYPE_CHECKING, Any

import click

from scheduler.authoring import frames
from scheduler.authoring.frames import DataFrameReference
from scheduler.cli import options, output
from scheduler.cli.lazy import Later

if TYPE_CHECKING:
    from scheduler.store.queries import reads
else:
    reads = Later("scheduler.store.queries.reads")

#: Maximum characters of a value in the table. --json prints all.
SHOWN_CHARACTERS = 200


@click.command()
@click.argument("dag_id", metavar="DAG")
@click.argument("run_id", metavar="RUN")
@click.argument("task_id", metavar="TASK")
@click.option(
    "--map-index", type=click.IntRange(min=-1), default=-1, show_default=True, help="Map index of a mapped task instance."
)
@options.as_json
def xcoms(dag_id: str, run_id: str, task_id: str, *, map_index: int, json_wanted: bool) -> None:
    """Print the XComs of a task instance. For a DataFrame, print its location, rows and columns."""
    options.transact(reads.task_instance, dag_id, run_id, task_id, map_index=map_index)
    rows = options.transact(reads.xcoms, dag_id, run_id, task_id, map_index=map_index)
    if json_wanted:
        output.print_json(rows)
        return
    output.table(
        [row | {"value": _shown(row["value"])} for row in rows], ["key", "value", "created_at"], empty="It pushed nothing."
    )


def _shown(value: Any) -> str:
    value = frames.revived(value)
    if isinstance(value, DataFrameReference):
        return describe(value)
    text = json.dumps(value, ensure_ascii=False, default=describe)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def describe(frame: DataFrameReference) -> str:
    """Describe a DataFrame in one line."""
    columns = ", ".join(f"{name} {kind}" for name, kind in frame.columns.items())
    return f"DataFrame of {frame.rows:,} rows ({columns}), {frame.bytes:,} bytes at {frame.url}"
