"""Deletes the files in the folders of tables that nothing needs: what a killed process wrote and no pointer knows.

The catalog knows each folder that it has given to a new table, and when a try last began to use it. A file there that no version
of a table and no try names, and that is older than each running try, is deleted. Files are compared by their names alone, which
Iceberg makes unique: engines write the same path in several ways. A folder in which nothing is left to do rests until it is used
again. A sweep that is interrupted continues with the next one; two at once visit different folders.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import Engine

from scheduler.catalog import files, needed
from scheduler.catalog.files import Warehouse
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.db import clock
from scheduler.store.db.database import transact
from scheduler.store.tables import folders, pointers
from scheduler.store.tables.folders import Due

log = logging.getLogger("paceline.tables")


@dataclass(frozen=True, slots=True)
class Swept:
    """How much was deleted, and what could not be."""

    folders: int
    files: int
    failed: int


def sweep(settings: Settings, engine: Engine, *, older_s: float, limit: int, stop: Callable[[], bool]) -> Swept:
    """Sweep up to `limit` folders that were not visited for these seconds, one after the other, until `stop()`."""
    warehouse = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
    catalog = settings.tables.catalog
    visited = deleted = failed = 0
    before = transact(engine, clock.now) - timedelta(seconds=older_s)
    while visited < limit and not stop() and (due := transact(engine, folders.take, catalog, before)) is not None:
        visited += 1
        try:
            deleted += _sweep(warehouse, engine, catalog, due, older_s=older_s)
        except OSError as error:
            failed += 1
            log.warning("The folder %s cannot be swept: %s", due.location, error)
    return Swept(visited, deleted, failed)


def _sweep(warehouse: Warehouse, engine: Engine, catalog: str, due: Due, *, older_s: float) -> int:
    """Delete what nothing needs in a folder. The number of files. OSError."""
    began, until = transact(engine, folders.moments, older_s)
    # The list comes before the pointers: what is published between is not in the list, or is a file of a running try.
    listed = list(warehouse.listed(due.location))
    inside, elsewhere = transact(engine, folders.metadata_files, catalog, due.location)
    tables = list(_readable(warehouse, inside))
    tables += [one for one in _readable(warehouse, elsewhere) if _may_use(one, due.location)]
    stay = {_name(one) for one in (*inside, *needed.all_files(warehouse, tables))}
    unneeded = [(place, changed) for place, changed in listed if _name(place) not in stay]
    old = [place for place, changed in unneeded if changed < until]
    for place in old:
        fault_points.point("tables.delete")
        warehouse.delete(place)
    if len(old) < len(unneeded):
        return len(old)
    if len(listed) == len(old) and not inside and due.used_at < until:
        if transact(engine, folders.forget, catalog, due):
            warehouse.delete_folder(due.location)
    else:
        transact(engine, folders.swept, catalog, due.location, until, began)
    return len(old)


def _readable(warehouse: Warehouse, locations: Iterable[str]) -> Iterator[TableMetadata]:
    """The tables in metadata files. One that is gone cannot be read again, so nothing is needed for it. OSError."""
    for location in locations:
        if pointers.is_view(location):
            continue
        try:
            yield warehouse.metadata(location).table
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise OSError(f"{location} is no metadata file of Iceberg: {error}") from None


def _may_use(table: TableMetadata, folder: str) -> bool:
    return any(f"{place}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{place}/") for place in files.places(table))


def _name(place: str) -> str:
    """The name of a file. Hadoop writes a checksum `.<name>.crc` beside each file of this machine."""
    name = place.rpartition("/")[2]
    return name[1:-4] if name.startswith(".") and name.endswith(".crc") else name
