"""What a table is now, and what has changed between two of its states, for people."""

import contextlib
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine

from paceline.exceptions import NotFoundError
from scheduler.catalog import contents, files
from scheduler.catalog.contents import State
from scheduler.catalog.files import Warehouse
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.tables import history, pointers


def describe(settings: Settings, engine: Engine, namespace: str, name: str) -> dict[str, Any]:
    """The columns, partitions, snapshots and properties of a table. NotFoundError."""
    location = transact(engine, pointers.of, settings.tables.catalog, None, namespace, name).location
    if location is None or pointers.is_view(location):
        raise NotFoundError(f"There is no table {namespace}.{name}: see `paceline tables list`.")
    table = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options).metadata(location).table
    schema, current = table.schema(), table.current_snapshot()
    summary = {} if current is None or current.summary is None else current.summary.additional_properties
    return {
        "table": f"{namespace}.{name}",
        "uuid": str(table.table_uuid),
        "location": table.location,
        "metadata_location": location,
        "format_version": table.format_version,
        "columns": files.columns(table),
        "partitions": [f"{field.transform}({schema.find_column_name(field.source_id)})" for field in table.spec().fields],
        "properties": dict(table.properties),
        "rows": int(summary.get("total-records", 0)),
        "snapshot_id": table.current_snapshot_id,
        "snapshots": [
            {
                "snapshot_id": one.snapshot_id,
                "written_at": datetime.fromtimestamp(one.timestamp_ms / 1000, UTC).isoformat(),
                "operation": None if one.summary is None else one.summary.operation.value,
            }
            for one in table.snapshots
        ],
        "branches_and_tags": {ref: one.snapshot_id for ref, one in table.refs.items()},
    }


def difference(
    settings: Settings, engine: Engine, namespace: str, name: str, *, before: int, after: int, limit: int
) -> dict[str, Any]:
    """The rows and columns that differ between two states of a table, each a publication or a snapshot. NotFoundError."""
    warehouse = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
    old, new = (_state(settings, engine, namespace, name, number) for number in (before, after))
    found = contents.difference(warehouse, old, new, limit)
    changed = files.schema_change if old.table.table_uuid == new.table.table_uuid else files.schema_change_by_name
    return {
        "table": f"{namespace}.{name}", "from": before, "to": after, "schema": changed(old.schema, new.schema),
        "added_rows": found.added, "removed_rows": found.removed, "compared": found.compared,
        "added": found.added_rows, "removed": found.removed_rows,
    }  # fmt: skip


def _state(settings: Settings, engine: Engine, namespace: str, name: str, number: int) -> State:
    """The state of a table after a publication, or at a snapshot."""
    catalog, table = settings.tables.catalog, f"{namespace}.{name}"
    warehouse = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
    locations = transact(engine, history.locations, catalog, namespace, name)
    current = transact(engine, pointers.of, catalog, None, namespace, name).location
    known = _snapshots(warehouse, [*locations, *([] if current is None else [current])])
    if number in known:
        return State.of(warehouse, known[number], number)
    then = transact(engine, history.at, catalog, namespace, name, number)
    last = transact(engine, history.last)
    if then is None or number > last:
        raise NotFoundError(
            f"The table {table} has neither a publication nor a snapshot {number}: see `paceline tables history {table}`. States"
            " from before retention.housekeeping_days are removed."
        )
    if then["metadata_location"] is None or pointers.is_view(then["metadata_location"]):
        raise NotFoundError(f"There was no table {table} after publication {number}: compare another state.")
    return State.of(warehouse, then["metadata_location"])


def _snapshots(warehouse: Warehouse, locations: list[str]) -> dict[int, str]:
    """The snapshots of metadata files, each with the newest file that has it. Files that are gone are passed over."""
    found: dict[int, str] = {}
    for location in locations:
        if not pointers.is_view(location):
            with contextlib.suppress(FileNotFoundError):
                found.update(dict.fromkeys((one.snapshot_id for one in warehouse.metadata(location).table.snapshots), location))
    return found
