"""`paceline assets`: lists assets and records updates."""

from typing import Any

import click

from scheduler.cli import lazy, options, output


@click.group(cls=lazy.NounGroup)
def assets() -> None:
    """List assets and record updates."""


@assets.command("list")
@options.as_table
def list_() -> None:
    """List all assets with their tasks, DAGs and last update.

    Each row shows the tasks that update the asset and the DAGs that are scheduled on it.
    """
    from scheduler.store.dags import assets as store

    columns = ["name", "uri", "updated_by", "waited_for_by", "updated_at"]
    output.listing(options.transact(store.assets), columns, empty="No assets.")


@assets.command()
@click.argument("uri")
@click.option(
    "--extra", type=options.JSON_OBJECT, help="A JSON object that is attached to the event and available in the triggered runs."
)
@click.option("--partition", metavar="KEY", help="The partition of the asset that is updated.")
@options.as_json
def update(uri: str, extra: dict[str, Any] | None, partition: str | None) -> None:
    """Record an update of an asset, given by URI or name. This can trigger the DAGs scheduled on it."""
    from scheduler.actions import stored

    event = stored.update_asset(options.actor(), uri, extra, partition)
    output.result(event, f"Asset {event['uri']} is updated.")
