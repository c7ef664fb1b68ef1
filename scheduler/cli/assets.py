"""`paceline assets`: what tasks update and DAGs wait for."""

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import options, output
from scheduler.cli.lazy import Later

if TYPE_CHECKING:
    from scheduler.store import assets as store
else:
    store = Later("scheduler.store.assets")


@click.group()
def assets() -> None:
    """List assets, and say that one was updated."""


@assets.command("list")
@options.as_json
def list_(json_wanted: bool) -> None:
    """Every asset: which tasks update it, which DAGs wait for it, and when it was updated last."""
    rows = store.assets(options.engine())
    if json_wanted:
        output.print_json(rows)
    else:
        output.table(rows, ["name", "uri", "updated_by", "waited_for_by", "updated_at"], empty="No assets.")


@assets.command()
@click.argument("uri")
@click.option("--extra", type=options.JSON_OBJECT, help="A JSON object that the runs it makes find in the event.")
@options.as_json
def update(uri: str, extra: dict[str, Any] | None, json_wanted: bool) -> None:
    """Say that the asset URI (or of that name) was updated; DAGs that wait for it may run."""
    event = store.update(options.engine(), uri, extra, "cli")
    options.ring("plan")
    if json_wanted:
        output.print_json(event)
    else:
        click.echo(f"Asset {event['uri']} is updated.")
