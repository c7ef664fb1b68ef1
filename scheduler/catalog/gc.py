"""Deletes the files of tries that ended without a publication, those that a publication left behind, and those that nothing knows.

The files of a try are those that its snapshots added. A snapshot that is also in a metadata file that was ever current is not the
try's, whatever name the try gave to the table. In case of doubt, a file stays. A file is deleted before those that name it, so a
call that is interrupted continues with the next one. Two calls at once do no harm.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from sqlalchemy import Engine

from scheduler.catalog import sweep
from scheduler.catalog.files import Warehouse
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.tables import dead_tries, pointers
from scheduler.store.tables.dead_tries import Leftover

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
    tries = files = failed = after = 0
    while tries < limit and (batch := transact(engine, dead_tries.dead, after, older_s, min(BATCH, limit - tries))):
        for after in batch:
            if stop():
                return Collected(tries, files, failed)
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
                transact(engine, dead_tries.forget, after)
            tries, failed = tries + 1, failed + missed
    swept = sweep.sweep(settings, engine, older_s=older_s, limit=limit, stop=stop)
    return Collected(tries, files + swept.files, failed + swept.failed, swept.folders)


def _files(warehouse: Warehouse, engine: Engine, catalog: str, try_id: int) -> list[str]:
    """The files that only this try needed and no publication, each before those that name it. OSError."""
    leftovers = transact(engine, dead_tries.leftovers, try_id)
    written = [location for one in leftovers for location in one.written]
    ever_current = transact(engine, dead_tries.published, catalog, written)
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
            yield from _of_snapshot(warehouse, snapshot)


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
    locations = transact(engine, dead_tries.published, catalog, history)
    if leftover.base_location is not None:
        locations.add(leftover.base_location)
    elif history and not locations and history[0] not in leftover.written:
        raise ValueError("its history does not reach back to what was current")
    return [warehouse.metadata(location).table for location in sorted(locations)]
