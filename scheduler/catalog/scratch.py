"""What a reproduction writes on: copies of the metadata of tables, whose files go into a folder of the reproduction.

A copy has the snapshots of the table, so it reads the same files, and adds its own elsewhere. Nobody may delete what it shares:
`gc.enabled` is false, and the history of metadata files is empty.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from pyiceberg.view.metadata import ViewMetadata
from sqlalchemy import Connection, Engine

from scheduler.catalog.files import PATHS, VERSION, Warehouse
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.tables import folders, pointers
from scheduler.store.tables import scratch as store
from scheduler.store.tables.pointers import VIEW

#: Iceberg's property of a table that lets nobody delete its files.
KEEPS_FILES = {"gc.enabled": "false"}


def copied(connection: Connection, catalog: str, warehouse: Warehouse, table: tuple[str, str], location: str) -> str:
    """The copy of a metadata file for a name in a scratch namespace: always the same file, which the first caller writes."""
    folder = "/".join((warehouse.folder(table[0]), table[1]))
    # Until the commit, another process with the same table waits, and finds a complete file.
    folders.hold(connection, catalog, folder)
    known = VERSION.search(location)
    kind = VIEW if pointers.is_view(location) else ".metadata.json"
    copy = f"{folder}/metadata/{int(known[1]) if known else 0:05d}-{uuid.uuid5(uuid.NAMESPACE_URL, location)}{kind}"
    if not warehouse.is_complete(copy):
        warehouse.write_copy(copy, _moved(warehouse, location, folder))
    return copy


def without_places(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request that creates a table, without the folders that it names: the reproduction has its own."""
    properties = {key: value for key, value in (request.get("properties") or {}).items() if key not in PATHS}
    return {**request, "location": None, "properties": properties}


def drop(settings: Settings, engine: Engine, scratch: str) -> int:
    """Drop the tables of a reproduction that has ended, and delete their files. Returns how many were deleted. OSError.

    Its folders have no file of another table. What a lost process writes there later is swept. Nothing goes if the run was cleared.
    """
    warehouse = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
    folders_of = transact(engine, store.drop, settings.tables.catalog, scratch, warehouse.folder(scratch))
    if folders_of is None:
        return 0
    count = 0
    for folder in folders_of:
        for place, _ in list(warehouse.listed(folder)):
            warehouse.delete(place)
            count += 1
        warehouse.delete_folder(folder)
    warehouse.delete_folder(warehouse.folder(scratch))
    return count


def _moved(warehouse: Warehouse, location: str, folder: str) -> str:
    if pointers.is_view(location):
        view = ViewMetadata.model_validate_json(warehouse.text(location))
        return view.model_copy(update={"location": folder}).model_dump_json(exclude_none=True)
    table = warehouse.metadata(location).table
    properties = {key: value for key, value in table.properties.items() if key not in PATHS}
    changes = {"location": folder, "properties": properties | KEEPS_FILES, "metadata_log": []}
    return table.model_copy(update=changes).model_dump_json(exclude_none=True)
