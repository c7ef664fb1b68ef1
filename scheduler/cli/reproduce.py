"""`paceline runs reproduce`: runs an earlier run again on the tables that it has read, and compares what both have written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import options, output

if TYPE_CHECKING:
    from scheduler.store.runs.reproductions import Reproduction

COLUMNS = ["table", "is_equal", "schema_equal", "original_rows", "reproduced_rows", "checksum_equal", "columns_that_differ", "note"]
INPUT_COLUMNS = ["task_id", "map_index", "table", "original_publication", "reproduced_publication"]


@click.command()
@options.run
@click.option("--keep", is_flag=True, help="Keep the tables of the reproduction until its run is deleted.")
@click.option(
    "--ignore", "ignored", metavar="COLUMN", multiple=True, help="Leave a column out of the comparison of rows. Can be repeated."
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop waiting after this time.")
@click.option("--yes", is_flag=True, help="Also run tasks again that are known to do more than write tables.")
@options.as_json
def reproduce(dag_id: str, run_id: str, *, keep: bool, ignored: tuple[str, ...], timeout_s: float | None, yes: bool) -> None:
    """Run an ended run again with the same code, on the same state of its tables, and compare what both have written.

    It writes into a namespace of its own, which is deleted at the end. Exit 0 if rows, schemas and checksums are equal, 1 if
    something differs, 2 if the run cannot be reproduced.
    """
    from scheduler.actions import reproductions as actions
    from scheduler.catalog import reproduction, scratch
    from scheduler.cli import progress
    from scheduler.cli.tables import settings_with_tables
    from scheduler.store.read import reads

    settings = settings_with_tables()
    original = options.transact(reads.run, dag_id, run_id)
    created = actions.start(options.actor(), dag_id, run_id, keep=keep, despite_effects=yes)
    _introduce(dag_id, run_id, created)
    screen = output.console(stderr=output.json_wanted())
    run = progress.watch_run(options.engine(), dag_id, created.run_id, console=screen, timeout_s=timeout_s)
    found = reproduction.compare(
        settings, options.engine(), created.original_id, created.id, namespace=created.scratch, ignored=ignored
    )
    is_equal = run["state"] == original["state"] and not found["inputs"] and all(row["is_equal"] for row in found["tables"])
    answer = {
        "dag_id": dag_id, "run_id": run_id, "reproduction": created.run_id, "dag_version": created.version_number,
        "original_state": original["state"], "reproduced_state": run["state"], "is_equal": is_equal,
        "namespace": created.scratch if keep else None, **found,
    }  # fmt: skip
    if not keep:
        scratch.drop(settings, options.engine(), created.scratch)
    _show(answer)
    if not is_equal:
        click.get_current_context().exit(1)


def _introduce(dag_id: str, run_id: str, created: Reproduction) -> None:
    output.say(
        f"Run {run_id} of DAG {dag_id} runs again as {created.run_id}, with version {created.version_number} of the DAG,"
        f" and writes into the namespace {created.scratch}."
    )
    if created.moves:
        output.say("The run moved to this version while it ran: its earlier tasks executed other code.")


def _show(answer: dict[str, Any]) -> None:
    if output.json_wanted():
        output.print_json(answer)
        return
    rows = [row | {"columns_that_differ": ", ".join(row["columns_that_differ"])} for row in answer["tables"]]
    output.table(rows, COLUMNS, empty="No tables.")
    if answer["inputs"]:
        click.echo("Its tasks have read other states than those of the original:")
        output.table(answer["inputs"], INPUT_COLUMNS, empty="")
    if answer["original_state"] != answer["reproduced_state"]:
        click.echo(f"The original is {answer['original_state']}, the reproduction is {answer['reproduced_state']}.")
    if answer["namespace"]:
        click.echo(f"The tables of the reproduction are in the namespace {answer['namespace']} as long as its run.")
    verdict = "is equal to" if answer["is_equal"] else "differs from"
    click.echo(output.visible(f"{answer['reproduction']} {verdict} {answer['run_id']}."))
