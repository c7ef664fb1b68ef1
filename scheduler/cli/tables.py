"""`paceline assets` lists assets and records updates. `paceline tables` shows Iceberg tables and their history, compares states,
rolls back, joins small files, and deletes what nothing needs.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from paceline.exceptions import UsageError
from scheduler.cli import lazy, options, output

if TYPE_CHECKING:
    from scheduler.settings import Settings

COLUMNS = [
    "table",
    "publication",
    "published_at",
    "published_by",
    "run_id",
    "operation",
    "added_rows",
    "deleted_rows",
    "total_rows",
]
#: A publication, or the ID of a snapshot, which has 63 bits.
STATE = click.IntRange(0, 2**63 - 1)
table = click.argument("table", metavar="TABLE")
limit = click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number.")


@click.group(cls=lazy.NounGroup)
def tables() -> None:
    """List Iceberg tables, show, compare and roll them back, join small files, and delete old snapshots."""


@tables.command("list")
@click.option("--namespace", help="Only tables of this namespace.")
@limit
@options.as_table
def list_(namespace: str | None, *, limit: int) -> None:
    """List the current tables with their last publications."""
    from scheduler.store.tables import history

    catalog = options.settings().tables.catalog
    output.listing(options.transact(history.tables, catalog, namespace, limit), COLUMNS, empty="No tables.")


@tables.command()
@table
@options.as_json
def show(table: str) -> None:
    """Show a table as it is now: its columns, partitions, snapshots and properties."""
    from scheduler.catalog import describe

    row = describe.describe(settings_with_tables(), options.engine(), *_parts(table))
    columns = "\n".join(f"  {name} {kind}" for name, kind in row["columns"].items())
    snapshots = f"{len(row['snapshots'])} snapshots"
    output.result(row, f"{table}, {row['rows']} rows, {snapshots}, at {row['location']}\n{columns}")


@tables.command("history")
@table
@limit
@options.as_table
def history_(table: str, *, limit: int) -> None:
    """List the publications of a table, newest first, with the tasks that made them."""
    from scheduler.actions import stored as actions
    from scheduler.store.tables import history

    rows = options.transact(history.history, options.settings().tables.catalog, *actions.table_parts(table), limit)
    output.listing(rows, [*COLUMNS[1:], "is_dropped"], empty=f"The table {table} has no publications.")


@tables.command()
@table
@click.argument("before", metavar="FROM", type=STATE)
@click.argument("after", metavar="TO", type=STATE)
@click.option("--limit", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Maximum rows to show of each kind.")
@options.as_table
def diff(table: str, *, before: int, after: int, limit: int) -> None:
    """Show the rows added and removed between two states of a table, and the changes of its columns.

    FROM and TO are publications, as `paceline tables history` lists them, or IDs of snapshots.
    """
    from scheduler.catalog import describe

    row = describe.difference(settings_with_tables(), options.engine(), *_parts(table), before=before, after=after, limit=limit)
    if output.json_wanted():
        output.print_json(row)
        return
    for change in row["schema"]:
        click.echo(output.visible(f"Column {change}"))
    for kind in ("added", "removed"):
        shown = f", of which {len(row[kind])} are shown" if len(row[kind]) < row[f"{kind}_rows"] else ""
        click.echo(f"{output.count(row[f'{kind}_rows'], 'row')} {kind}{shown}.")
        if row[kind]:
            output.table(row[kind], row["compared"], empty="")


@tables.command()
@table
@click.option("--to", "publication", type=click.IntRange(0, lazy.LARGEST), required=True, help="Publication to go back to.")
@click.option("--wake", is_flag=True, help="Also record an update of its asset, which runs the DAGs that are scheduled on it.")
@options.as_json
def rollback(table: str, publication: int, *, wake: bool) -> None:
    """Make a table what it was after a publication. That is a publication too, so it can be undone in the same way."""
    from scheduler.actions import stored as actions

    row = actions.roll_back_table(options.actor(), options.settings().tables.catalog, table, publication, wakes=wake)
    output.result(
        row, f"Table {table} is as it was after publication {row['rolled_back_to']}; this is publication {row['publication']}."
    )


@tables.command()
@table
@click.option("--older", type=click.FloatRange(min=0), help="Days. Default: retention.housekeeping_days.")
@options.as_json
def expire(table: str, older: float | None) -> None:
    """Remove old snapshots of a table, and delete the files that only they needed.

    A rollback to a publication from before that time is not possible any more.
    """
    from scheduler.catalog import expire as expiry
    from scheduler.store.db import clock

    settings = settings_with_tables()
    days = settings.retention.housekeeping_days if older is None else older
    before = options.transact(clock.now) - timedelta(days=days)
    done = expiry.expire(settings, options.engine(), *_parts(table), before=before, by=options.actor().name)
    row = {"table": table, "snapshots": done.snapshots, "files": done.files, "publication": done.publication}
    output.result(row, f"Removed {done.snapshots} snapshots of {table}, and deleted {done.files} files.")


@tables.command()
@table
@click.option(
    "--most-bytes",
    type=click.IntRange(1),
    help="Maximum size of the files to join, of which each counts as 1 MiB or more. Default: 1 GiB.",
)
@options.as_json
def compact(table: str, most_bytes: int | None) -> None:
    """Join small files of a table, so that its readers open fewer. Its rows stay what they are.

    Repeat the command until no files are left to join. The old files stay until their snapshots expire.
    """
    from scheduler.catalog import compact as compaction

    settings = settings_with_tables()
    done = compaction.compact(settings, options.engine(), *_parts(table), most_bytes=most_bytes, by=options.actor().name)
    row = {"table": table, "files": done.files, "into": done.into, "left": done.left}
    left = f"; {output.count(done.left, 'small file')} left for the next call" if done.left else ""
    text = f"Joined {output.count(done.files, 'file')} of {table} into {done.into}{left}."
    if not done.files:
        text = f"There is nothing to join in {table}{f': {done.reason}' if done.reason else ''}."
    output.result(row, text)


@tables.command()
@table
@options.as_json
def repair(table: str) -> None:
    """Remove the older of two schemas or sort orders of a table that have one number, which Spark refuses to read.

    Tables that two programs replaced at the same time may have them. That is a publication, which a rollback undoes.
    """
    from scheduler.catalog import repair as repairs

    done = repairs.repair(settings_with_tables(), options.engine(), *_parts(table), by=options.actor().name)
    removed = f"{output.count(done.schemas, 'schema')} and {output.count(done.sort_orders, 'sort order')}"
    text = f"Removed {removed} of {table}." if done.schemas or done.sort_orders else f"Nothing in {table} has a number twice."
    output.result({"table": table, "schemas": done.schemas, "sort_orders": done.sort_orders}, text)


@tables.command()
@click.option("--older", type=click.FloatRange(min=0), help="Seconds since the try began. Default: tables.keep_dead_tries.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Maximum number of tries, and of folders."
)
@options.as_json
def gc(older: float | None, limit: int) -> None:
    """Delete the files of tries that ended without a publication, and those in the folders of tables that nothing needs."""
    from scheduler.catalog import gc as collection

    settings = settings_with_tables()
    done = collection.collect(settings, options.engine(), older_s=older, limit=limit)
    row = {"tries": done.tries, "files": done.files, "failed": done.failed, "folders": done.folders}
    deleted = f"Deleted {done.files} files, of {done.tries} tries and in {done.folders} folders"
    output.result(row, f"{deleted}; {done.failed} could not be deleted.")


def settings_with_tables() -> "Settings":
    """The settings, if there are tables. UsageError."""
    settings = options.settings()
    if not settings.tables.warehouse:
        raise UsageError("There are no tables: set tables.warehouse, and install paceline[tables].")
    return settings


def _parts(table: str) -> tuple[str, str]:
    from scheduler.actions import stored as actions

    return actions.table_parts(table)


@click.group(cls=lazy.NounGroup)
def assets() -> None:
    """List assets and record updates."""


@assets.command("list")
@options.as_table
def list_assets() -> None:
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
