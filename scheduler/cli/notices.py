"""`paceline notices`: lists pending and failed callbacks and emails."""

import click

from scheduler.cli import lazy, options, output
from scheduler.cli.late import notices as store


@click.group(cls=lazy.NounGroup)
def notices() -> None:
    """List pending and failed callbacks and emails."""


@notices.command("list")
@click.option("--dag", "dag_id", metavar="DAG", help="Only for this DAG.")
@click.option("--failed", is_flag=True, help="List failed notices instead of pending ones.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number, newest first.")
@options.as_table
def list_(dag_id: str | None, *, failed: bool, limit: int) -> None:
    """List pending callbacks and emails or, with --failed, those that ended with an error."""
    rows = options.transact(store.notices, dag_id=dag_id, failed=failed, limit=limit)
    columns = ["kind", "dag_id", "run_id", "task_id", "map_index", "try_number", "created_at", "attempts", "error"]
    output.listing(rows, columns, empty="No callback or email failed." if failed else "No callback or email is pending.")
