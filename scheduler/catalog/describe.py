"""What a table is now, for people."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine

from paceline.exceptions import NotFoundError
from scheduler.catalog import files
from scheduler.catalog.files import Warehouse
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.tables import pointers


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
