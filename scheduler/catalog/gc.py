"""Deletes the files of tries that ended without a publication.

The files of a try are those that its snapshots added. A snapshot that is also in a metadata file that was ever current is not the
try's, whatever name the try gave to the table. In case of doubt, a file stays.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import Engine

from scheduler.catalog.files import Warehouse
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.tables import dead_tries
from scheduler.store.tables.dead_tries import Leftover

log = logging.getLogger("paceline.tables")

#: Tries that are looked up at once.
BATCH = 20


@dataclass(frozen=True, slots=True)
class Collected:
    """How much was deleted: tries and files, and the files that could not be."""

    tries: int
    files: int
    failed: int


def collect(settings: Settings, engine: Engine, *, older_s: float | None = None, limit: int = 1000) -> Collected:
    """Delete the files of up to `limit` dead tries. A call that is interrupted continues with the next one."""
    warehouse = Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
    older_s = settings.tables.keep_dead_tries if older_s is None else older_s
    tries = files = failed = after = 0
    while tries < limit and (batch := transact(engine, dead_tries.dead, after, older_s, min(BATCH, limit - tries))):
        for after in batch:
            missed = 0
            for location in sorted(_files(warehouse, engine, settings.tables.catalog, after)):
                try:
                    warehouse.delete(location)
                    files += 1
                except Exception as error:
                    missed += 1
                    log.warning("The file %s of a dead try could not be deleted: %s", location, error)
            if not missed:
                transact(engine, dead_tries.forget, after)
            tries, failed = tries + 1, failed + missed
    return Collected(tries, files, failed)


def _files(warehouse: Warehouse, engine: Engine, catalog: str, try_id: int) -> set[str]:
    """The files that only this dead try needed."""
    found: set[str] = set()
    for leftover in transact(engine, dead_tries.leftovers, try_id):
        ever_current = transact(engine, dead_tries.published, catalog, leftover.written)
        own = [location for location in leftover.written if location not in ever_current]
        found.update(own)
        for location in own:
            found.update(_of_metadata(warehouse, engine, catalog, leftover, location))
    return found


def _of_metadata(warehouse: Warehouse, engine: Engine, catalog: str, leftover: Leftover, location: str) -> Iterator[str]:
    try:
        table = warehouse.metadata(location).table
        others = _ever_current(warehouse, engine, catalog, leftover, table)
    except (OSError, ValueError) as error:  # an earlier call has deleted it, or nobody can say what belongs to others
        log.info("The files below %s stay: %s", location, error)
        return
    kept = {snapshot.snapshot_id for other in others for snapshot in other.snapshots}
    for snapshot in table.snapshots:
        if snapshot.snapshot_id in kept:
            continue
        try:
            for manifest in snapshot.manifests(warehouse.io):
                if manifest.added_snapshot_id == snapshot.snapshot_id:
                    for entry in manifest.fetch_manifest_entry(warehouse.io, discard_deleted=False):
                        if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id in (None, snapshot.snapshot_id):
                            yield entry.data_file.file_path
                    yield manifest.manifest_path
            yield snapshot.manifest_list
        except OSError as error:  # deleted by an earlier call
            log.info("A manifest of snapshot %d is gone: %s", snapshot.snapshot_id, error)


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
