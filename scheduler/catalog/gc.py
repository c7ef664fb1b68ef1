"""Deletes the files of tries that ended without a publication, those that a publication left behind, and those that nothing knows.

The files of a try are those that its snapshots added. A snapshot that is also in a metadata file that was ever current is not the
try's, whatever name the try gave to the table. In case of doubt, a file stays. A file is deleted before those that name it, so a
call that is interrupted continues with the next one. Two calls at once do no harm.

The catalog knows each folder that it has given to a new table, and when a try last began to use it. A file there that no version
of a table and no try names, and that is older than each running try, is swept. Files are compared by their names alone, which
Iceberg makes unique: engines write the same path in several ways. A folder in which nothing is left to do rests until it is used
again. Two sweeps at once visit different folders.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from sqlalchemy import Engine

from scheduler.catalog import files
from scheduler.catalog import scratch as reproductions
from scheduler.catalog.files import Warehouse, owns
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.db import clock
from scheduler.store.db.database import transact
from scheduler.store.tables import comparisons, folders, pointers, tries
from scheduler.store.tables import scratch as store
from scheduler.store.tables.folders import Due
from scheduler.store.tables.tries import Leftover

log = logging.getLogger("paceline.tables")

#: Tries that are looked up at once.
BATCH = 20


@dataclass(frozen=True, slots=True)
class Collected:
    """How much was deleted: tries and files, and the files that could not be. `folders` were swept."""

    tries: int
    files: int
    failed: int
    folders: int = 0


def collect(
    settings: Settings, engine: Engine, *, older_s: float | None = None, limit: int = 1000, stop: Callable[[], bool] = lambda: False
) -> Collected:
    """Delete the files of up to `limit` dead tries, then those that nothing needs in up to `limit` folders, until `stop()`."""
    warehouse = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
    older_s = settings.tables.keep_dead_tries if older_s is None else older_s
    visited = files = failed = after = 0
    while visited < limit and (batch := transact(engine, tries.dead, after, older_s, min(BATCH, limit - visited))):
        for after in batch:
            if stop():
                return Collected(visited, files, failed)
            missed = 0
            try:
                found = _files(warehouse, engine, settings.tables.catalog, after)
            except OSError as error:
                found, missed = [], 1
                log.warning("What a try has written cannot be read: %s", error)
            fault_points.point("tables.collect")
            for location in found:
                fault_points.point("tables.delete")
                try:
                    warehouse.delete(location)
                    files += 1
                except Exception as error:
                    missed += 1
                    log.warning("The file %s of a dead try could not be deleted: %s", location, error)
                    break  # those that name it stay, too
            fault_points.point("tables.collected")
            if not missed:
                transact(engine, tries.forget, after)
            visited, failed = visited + 1, failed + missed
    for key, scratch in transact(engine, store.abandoned, settings.tables.catalog, older_s):
        if stop():
            return Collected(visited, files, failed)
        try:
            with comparisons.claimed(engine, key) as is_free:  # otherwise a process compares them now
                files += reproductions.drop(settings, engine, scratch) if is_free else 0
        except OSError as error:  # the folders are swept later
            failed += 1
            log.warning("The files of the reproduction %s cannot be deleted: %s", scratch, error)
    swept = sweep(settings, engine, older_s=older_s, limit=limit, stop=stop)
    return Collected(visited, files + swept.files, failed + swept.failed, swept.folders)


def _files(warehouse: Warehouse, engine: Engine, catalog: str, try_id: int) -> list[str]:
    """The files that only this try needed and no publication, each before those that name it. OSError."""
    leftovers = transact(engine, tries.leftovers, try_id)
    written = [location for one in leftovers for location in one.written]
    ever_current = transact(engine, tries.published, catalog, written)
    published = [warehouse.metadata(location).table for location in sorted(ever_current) if not pointers.is_view(location)]
    kept = ever_current.union(entry.metadata_file for table in published for entry in table.metadata_log)
    found: dict[str, None] = {}
    for leftover in leftovers:
        for location in leftover.written:
            if location not in kept and not pointers.is_view(location):
                found.update(dict.fromkeys(_of_metadata(warehouse, engine, catalog, leftover, location, published=published)))
    return [*found, *(location for location in written if location not in kept)]


def _of_metadata(
    warehouse: Warehouse, engine: Engine, catalog: str, leftover: Leftover, location: str, *, published: Sequence[TableMetadata]
) -> Iterator[str]:
    """The files of a table in a metadata file of the try; `published` is what its publication needs."""
    try:
        table = warehouse.metadata(location).table
        if same := [one for one in published if one.table_uuid == table.table_uuid]:
            yield from _moved(table, same)
            return
        others = _ever_current(warehouse, engine, catalog, leftover, table)
    except (FileNotFoundError, ValueError) as error:  # an earlier call has deleted it, or nobody can say what belongs to others
        log.info("The files below %s stay: %s", location, error)
        return
    kept = {snapshot.snapshot_id for other in others for snapshot in other.snapshots}
    for snapshot in table.snapshots:
        if snapshot.snapshot_id not in kept:
            yield from (path for path in _of_snapshot(warehouse, snapshot) if owns([table], path))


def _moved(table: TableMetadata, published: Sequence[TableMetadata]) -> Iterator[str]:
    """The manifest lists of appends that are published with other ones, upon the rows of another writer."""
    snapshots = {one.snapshot_id for other in published for one in other.snapshots}
    lists = {one.manifest_list for other in published for one in other.snapshots}
    yield from (one.manifest_list for one in table.snapshots if one.snapshot_id in snapshots and one.manifest_list not in lists)


def _of_snapshot(warehouse: Warehouse, snapshot: Snapshot) -> Iterator[str]:
    """What a snapshot has added. An earlier call may have deleted a part of it."""
    try:
        manifests = snapshot.manifests(warehouse.io)
    except FileNotFoundError:
        return
    for manifest in manifests:
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            try:
                entries = manifest.fetch_manifest_entry(warehouse.io, discard_deleted=False)
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id in (None, snapshot.snapshot_id):
                    yield entry.data_file.file_path
            yield manifest.manifest_path
    yield snapshot.manifest_list


def _ever_current(
    warehouse: Warehouse, engine: Engine, catalog: str, leftover: Leftover, table: TableMetadata
) -> list[TableMetadata]:
    """The metadata that the try started from, and that of its history which was ever current. OSError if it cannot be read."""
    history = [entry.metadata_file for entry in table.metadata_log]
    locations = transact(engine, tries.published, catalog, history)
    if leftover.base_location is not None:
        locations.add(leftover.base_location)
    elif history and not locations and history[0] not in leftover.written:
        raise ValueError("its history does not reach back to what was current")
    return [warehouse.metadata(location).table for location in sorted(locations)]


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
    stay = {_name(one) for one in (*inside, *files.all_files(warehouse, tables))}
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
