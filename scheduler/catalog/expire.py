"""Removes old snapshots of a table, as a publication, and deletes the files that only they needed.

A version of the table to which a rollback may go, or which a running try reads, keeps its snapshot. What running tries have
written is moved over the removal when they report. The metadata of the version before the removal still names the removed
snapshots, so a call that is interrupted continues with the next one.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.table import update as updates
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from sqlalchemy import Connection, Engine

from paceline.exceptions import ConflictError, NotFoundError
from scheduler.catalog import files
from scheduler.catalog.files import Warehouse
from scheduler.settings import Settings
from scheduler.store.accounts import audit
from scheduler.store.db import clock
from scheduler.store.db.database import transact
from scheduler.store.tables import history, pointers, publish
from scheduler.store.tables.pointers import Change

log = logging.getLogger("paceline.tables")

#: Iceberg's property of a table that lets nobody delete its files.
ENABLED = "gc.enabled"
#: How often a removal begins again because a task was faster. The first attempt reads the metadata of all versions, the next ones
#: only what is new, so they are short.
ATTEMPTS = 5
#: Who removes snapshots that are old.
SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Expired:
    """How many snapshots were removed and files deleted. `publication` is None if there was no snapshot to remove."""

    snapshots: int
    files: int
    publication: int | None


def expire(settings: Settings, engine: Engine, namespace: str, name: str, *, before: datetime, by: str) -> Expired:
    """Remove the snapshots from before a moment that no branch, tag, later version or running try needs.

    NotFoundError; ConflictError if tasks change the table each time meanwhile, or its author keeps all snapshots.
    """
    catalog, warehouse = settings.tables.catalog, Warehouse.of(settings.tables.warehouse_url, settings.tables.storage_options)
    transact(engine, history.prune, catalog, namespace, name, before)
    for _ in range(ATTEMPTS):
        removal = _removal(engine, warehouse, catalog, (namespace, name), before)
        change = removal.change
        number = None if change is None else transact(engine, _publish, catalog, change, by)
        if change is None or number is not None:
            return Expired(len(removal.gone), _delete(warehouse, removal), number)
        warehouse.delete(str(change.location))
    raise ConflictError(f"The table {namespace}.{name} was changed meanwhile, {ATTEMPTS} times: run the command again.")


def expire_due(settings: Settings, engine: Engine, stop: Callable[[], bool]) -> int:
    """Remove the snapshots of all tables that are older than the versions to which a rollback may go, until `stop()`.

    Returns the number of tables that were visited. Each is visited at most once a day, so one that fails holds up no other.
    """
    before, visited = limit(settings, transact(engine, clock.now)), 0
    if before is None:
        return 0
    while not stop() and (due := transact(engine, history.take_due, settings.tables.catalog, before)) is not None:
        visited += 1
        try:
            done = expire(settings, engine, due.namespace, due.name, before=before, by=SCHEDULER)
        except (ConflictError, NotFoundError) as error:  # a task was faster, or its author keeps all snapshots
            log.info("The snapshots of %s.%s stay: %s", due.namespace, due.name, error)
        except (OSError, ValueError) as error:
            log.warning("The snapshots of %s.%s cannot be removed: %s", due.namespace, due.name, error)
        else:
            if done.snapshots:
                log.info("Removed %d snapshots of %s.%s, and %d files", done.snapshots, due.namespace, due.name, done.files)
    return visited


def limit(settings: Settings, now: datetime) -> datetime | None:
    """The moment from before which schedulers remove snapshots; None: they remove none."""
    days = settings.retention.housekeeping_days
    return now - timedelta(days=days) if settings.tables.warehouse and settings.tables.expire_snapshots and days else None


def _readable(warehouse: Warehouse, locations: Iterable[str]) -> Iterator[TableMetadata]:
    """The tables in metadata files. Iceberg may have deleted old ones, if the table has the property for it."""
    for location in locations:
        if pointers.is_view(location):
            continue
        with contextlib.suppress(FileNotFoundError):
            yield warehouse.metadata(location).table


def _needed(table: TableMetadata, versions: list[TableMetadata], before: datetime) -> set[int]:
    """The snapshots that stay: the newer ones, and those on which a version or one of its branches and tags stands."""
    stay = {one.snapshot_id for one in table.snapshots if one.timestamp_ms >= before.timestamp() * 1000}
    for version in versions:
        stay.update(ref.snapshot_id for ref in version.refs.values())
    return stay


@dataclass(frozen=True, slots=True)
class _Removal:
    """What a table loses: the IDs of its own snapshots that go, and all that went or stay, also those of its older `versions`."""

    gone: list[int]
    change: Change | None
    removed: list[Snapshot]
    kept: list[Snapshot]
    versions: list[TableMetadata]


def _removal(engine: Engine, warehouse: Warehouse, catalog: str, key: tuple[str, str], before: datetime) -> _Removal:
    namespace, name = key
    location = transact(engine, pointers.of, catalog, None, namespace, name).location
    if location is None or pointers.is_view(location):
        raise NotFoundError(f"There is no table {namespace}.{name}: see `paceline tables list`.")
    table = warehouse.metadata(location).table
    if table.properties.get(ENABLED) == "false":
        raise ConflictError(f"The table {namespace}.{name} keeps all snapshots: its property {ENABLED} is false.")
    versions = [table, *_readable(warehouse, transact(engine, history.locations, catalog, namespace, name))]
    stay = _needed(table, versions, before)
    every = {one.snapshot_id: one for version in versions for one in version.snapshots}
    gone = [one.snapshot_id for one in table.snapshots if one.snapshot_id not in stay]
    return _Removal(
        gone=gone,
        change=_without(warehouse, key, location, table, gone) if gone else None,
        removed=[one for one in every.values() if one.snapshot_id not in stay],
        kept=[one for one in every.values() if one.snapshot_id in stay],
        versions=versions,
    )


def _without(warehouse: Warehouse, key: tuple[str, str], location: str, table: TableMetadata, gone: list[int]) -> Change:
    change = updates.RemoveSnapshotsUpdate(snapshot_ids=gone)
    without = updates.update_table_metadata(table, (change,), metadata_location=location)
    return Change(
        namespace=key[0], name=key[1], expected=location, location=warehouse.write(without, location),
        facts=files.facts(without, table),
    )  # fmt: skip


def _publish(connection: Connection, catalog: str, change: Change, by: str) -> int | None:
    number, _ = publish.publish(connection, catalog, [change], by=by)
    if number is not None:
        extra = {"table": f"{change.namespace}.{change.name}", "publication": number}
        audit.end(connection, audit.begin(connection, "tables.expire", account=by, address=None, extra=extra), 200)
    return number


def _delete(warehouse: Warehouse, removal: _Removal) -> int:
    """Delete what only removed snapshots need, each file before those that name it. The number of files."""
    candidates = files.files_of(warehouse, removal.removed)
    if not candidates:
        return 0
    stays = files.files_of(warehouse, removal.kept)
    count = 0
    for path in candidates:
        if path not in stays and files.owns(removal.versions, path):
            try:
                warehouse.delete(path)
            except OSError as error:  # those that name it stay, so that the next call finds it
                log.warning("The file %s of an expired snapshot could not be deleted: %s", path, error)
                break
            count += 1
    return count
