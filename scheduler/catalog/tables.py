"""The operations of the catalog, for a running try or for a person.

A try reads as of the publication at its start, with what it has written itself. Its commits only move its own pointers, which the
report of its success publishes. What a streaming query writes is published at its checkpoints, see streaming.py. A person reads
what is current, and a commit of a person is a publication of its own.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pyiceberg.table.metadata import TableMetadata
from sqlalchemy import Connection, Engine
from tenacity import stop_after_delay

from paceline.exceptions import StaleTryError
from scheduler.catalog import commits, files, scratch, streaming
from scheduler.catalog.access import Caller
from scheduler.catalog.errors import (
    CatalogError,
    CommitFailedError,
    ExistsError,
    ForbiddenError,
    NoSuchTableError,
)
from scheduler.catalog.files import Metadata, Warehouse
from scheduler.catalog.namespaces import Namespaces
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.accounts import audit
from scheduler.store.db import database
from scheduler.store.tables import folders, history, pointers, publish, tries
from scheduler.store.tables.pointers import Change, Pinned, Pointer

log = logging.getLogger("paceline.tables")
T = TypeVar("T")
#: Seconds for which a request waits for PostgreSQL, and between two attempts.
PATIENCE_S, PAUSE_S = 30.0, 0.2
#: Tables, each with a try that has read it, that stay in memory: each is noted once.
USES = 10_000


class Tables:
    """The catalog of one process."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.catalog = settings.tables.catalog
        self.warehouse = Warehouse(settings.tables.warehouse_url, settings.tables.storage)
        self._noted = functools.lru_cache(maxsize=USES)(self._note)
        self._copied = functools.lru_cache(maxsize=USES)(self._copy)
        self._transact = database.until_answered(engine, pause_s=PAUSE_S, stop=stop_after_delay(PATIENCE_S))
        self.namespaces = Namespaces(self.catalog, self._transact)

    def caller(self, token: str) -> Caller | None:
        """The running try with a token; None if there is none."""
        attempt: Pinned | None = self._transact(tries.of_token, token)
        return None if attempt is None else Caller(attempt.name, attempt, may_write=True)

    def names(self, caller: Caller, namespace: str, *, views: bool = False) -> list[str]:
        """The tables of a namespace, or its views."""
        self.namespaces.properties(caller, namespace)
        return self._names(caller, namespace, views=views)

    def load(self, caller: Caller, namespace: str, name: str) -> Metadata:
        """The metadata of a table."""
        self.namespaces.check_use(caller, namespace, writes=False)
        found = self._found(caller, namespace, name)
        if caller.attempt is not None:
            self._noted(caller.attempt, namespace, name, found.table.location)
        return found

    def create(self, caller: Caller, namespace: str, request: Mapping[str, Any]) -> tuple[TableMetadata, str | None]:
        """Create a table. Returns its metadata and where that is: nowhere if the table is only staged. ExistsError."""
        self.namespaces.properties(caller, namespace, writes=True)
        if caller.reproduces:
            request = scratch.without_places(request)
        table, staged = commits.created(self.warehouse, caller.own(namespace), request)
        name = str(request["name"])
        is_done, pointer = self.namespaces.is_done(caller), self.pointer(caller, namespace, name)
        if pointer.location is not None and not is_done:
            raise taken(TABLE, pointer.location, f"{namespace}.{name}")
        if not is_done:
            self._check_folders(table, None)
            if not request.get("location"):
                self.give_folder(table.location)
            if staged:
                return table, None
            location = self.warehouse.write(table, None)
            facts = self._facts(table, None, pointer)
            change = Change(namespace=namespace, name=name, expected=None, location=location, facts=facts)
            if self.store(caller, [change], taken=ExistsError):
                return table, location
        found = self._found(caller, namespace, name)
        return found.table, found.location

    def commit(self, caller: Caller, wanted: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[tuple[str, str], Metadata]:
        """Apply the commits to these tables, all or none.

        A commit that does not fit the table any more, because it is in the table already, is answered as its first one was.
        """
        fault_points.point("tables.asked")
        answers: dict[tuple[str, str], Metadata] = {}
        changes = []
        streams = False
        for namespace in sorted({namespace for namespace, _ in wanted}):
            self.namespaces.properties(caller, namespace, writes=True)
        if self.namespaces.is_done(caller):
            return {key: self._found(caller, *key) for key in wanted}
        for (namespace, name), request in wanted.items():
            files.check_name("table", name)
            commit = commits.parsed(request, namespace, name)
            pointer = self.pointer(caller, namespace, name)
            if pointer.location is not None and pointers.is_view(pointer.location):
                raise taken(TABLE, pointer.location, f"{namespace}.{name}")
            base = None if pointer.location is None else self._read(pointer.location)
            mark = commits.mark(caller.name, request)
            try:
                table = commits.applied(self.warehouse, caller.own(namespace), commit, base)
            except CatalogError:
                if base is None or not self._has_made(caller, namespace, name, mark):
                    raise
                answers[namespace, name] = base
                continue
            self._check_folders(table, base)
            location = self.warehouse.write(table, pointer.location, mark)
            answers[namespace, name] = self.warehouse.metadata(location)
            streams = streams or streaming.is_marked(commit.updates)
            changes.append(Change(
                namespace=namespace, name=name, expected=pointer.location, location=location,
                updates=None if base is None else list(request.get("updates") or ()),
                facts=self._facts(table, base, pointer), mark=mark,
            ))  # fmt: skip
        if changes:
            fault_points.point("tables.written")
            if not self.store(caller, changes, streams=streams):
                caller = self._following(caller) if streams else caller
                return {key: self._found(caller, *key) for key in wanted}
        return answers

    def _facts(self, table: TableMetadata, base: Metadata | None, pointer: Pointer) -> dict[str, Any]:
        """What a commit has changed; of a new table, in comparison with one that the try has dropped."""
        if base is None and pointer.base is not None and not pointers.is_view(pointer.base):
            return files.replaced(table, self._read(pointer.base).table)
        return files.facts(table, None if base is None else base.table)

    def follow(self, caller: Caller) -> None:
        """Let a try read what is current from now on, for a query that follows a table."""
        self._transact(tries.follow, _running(caller))

    def begin_batch(self, caller: Caller, query: str, number: int) -> bool:
        """Begin a batch of a streaming query; False if it has been published. CommitFailedError after a batch that was not."""
        begun: bool = self._transact(streaming.begin_batch, _running(caller), query, number)
        return begun

    def publish_batch(self, caller: Caller, query: str, number: int) -> None:
        """Publish all that a try has written, as a batch of a streaming query, once. CommitFailedError if others were faster."""
        faster = self._transact(streaming.publish_batch, self.catalog, _running(caller), query, number)
        if faster:
            raise CommitFailedError(_changed(faster))
        fault_points.point("tables.stored")

    def drop(self, caller: Caller, namespace: str, name: str) -> None:
        """Drop a table. Its files stay until nothing needs them."""
        if self.namespaces.is_done(caller):
            return
        self.namespaces.properties(caller, namespace, writes=True)
        location = self.pointer(caller, namespace, name).location
        if location is None or pointers.is_view(location):
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
        self.store(caller, [Change(namespace=namespace, name=name, expected=location, location=None)])

    def rename(self, caller: Caller, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Give a table another name, also in another namespace. Its files stay where they are."""
        if self.namespaces.is_done(caller):
            return
        for namespace in {source[0], target[0]}:
            self.namespaces.properties(caller, namespace, writes=True)
        files.check_name("table", target[1])
        metadata = self._found(caller, *source)
        self.check_free(caller, source, target)
        if self.pointer(caller, *source).base is None:  # a try has created it, so all its rows are new
            facts = files.facts(metadata.table, None)
        else:
            facts = {**files.facts(metadata.table, metadata.table), "columns": files.columns(metadata.table)}
        self.store(caller, [
            Change(namespace=source[0], name=source[1], expected=metadata.location, location=None),
            Change(namespace=target[0], name=target[1], expected=None, location=metadata.location, facts=facts, is_new=False),
        ], taken=ExistsError)  # fmt: skip

    def register(self, caller: Caller, namespace: str, name: str, location: str, *, overwrite: bool) -> Metadata:
        """Make a table of a metadata file that is in the warehouse already. Only for people who may see all files there."""
        self.namespaces.properties(caller, namespace, writes=True)
        if not caller.is_admin:
            raise ForbiddenError("A metadata file of the warehouse is registered by an administrator only.")
        files.check_name("table", name)
        self.warehouse.check_metadata(location)
        pointer = self.pointer(caller, namespace, name)
        may_replace = (overwrite or self.namespaces.is_done(caller)) and not pointers.is_view(pointer.location)
        if pointer.location is not None and not may_replace:
            raise taken(TABLE, pointer.location, f"{namespace}.{name}")
        metadata = self._read(location)
        files.check_format(metadata.table.format_version)
        self.warehouse.check_metadata(f"{metadata.table.location}/metadata")
        if self.namespaces.is_done(caller):
            return metadata
        facts = files.facts(metadata.table, None)
        change = Change(namespace=namespace, name=name, expected=pointer.location, location=location, facts=facts, is_new=False)
        self.store(caller, [change], taken=ExistsError)
        return metadata

    def _names(self, caller: Caller, namespace: str, *, views: bool = False) -> list[str]:
        found: list[str] = self._transact(pointers.names, self.catalog, caller.attempt, namespace, views=views)
        return found

    def pointer(self, caller: Caller, namespace: str, name: str) -> Pointer:
        """Where the metadata of a name is for the caller."""
        found: Pointer = self._transact(pointers.of, self.catalog, caller.attempt, namespace, name)
        if not found.is_original:
            return found
        copy = self._copied(caller.own(namespace), name, found.location)
        return Pointer(copy, copy)

    def _copy(self, namespace: str, name: str, location: str) -> str:
        copy: str = self._transact(scratch.copied, self.catalog, self.warehouse, (namespace, name), location)
        return copy

    @staticmethod
    def _following(caller: Caller) -> Caller:
        """A caller whose request another process has done and perhaps published: a try reads what is current then."""
        if caller.attempt is None:
            return caller
        return dataclasses.replace(caller, attempt=dataclasses.replace(caller.attempt, publication=pointers.ANY))

    def _found(self, caller: Caller, namespace: str, name: str) -> Metadata:
        location = self.pointer(caller, namespace, name).location
        if location is None or pointers.is_view(location):
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
        return self._read(location)

    def _read(self, location: str) -> Metadata:
        try:
            return self.warehouse.metadata(location)
        except FileNotFoundError:
            raise NoSuchTableError(f"The metadata file {location} is gone: restore it, or roll the table back.") from None

    def check_free(self, caller: Caller, source: tuple[str, str], target: tuple[str, str]) -> None:
        """ExistsError if a table or a view has the name that another one is to get."""
        location = self.pointer(caller, *target).location
        if location is not None:
            raise ExistsError(f"Cannot rename {'.'.join(source)} to {'.'.join(target)}. {_kind(location)} already exists")

    def give_folder(self, folder: str) -> None:
        """Note that a folder is given to a new table or view, before anything is written there."""
        self._transact(folders.note, self.catalog, folder)

    def use(self, caller: Caller, folder: str) -> None:
        """Note that a try may put files into the folder of a view."""
        if caller.attempt is not None:
            self._transact(folders.use, self.catalog, folder)

    def _note(self, attempt: Pinned, namespace: str, name: str, folder: str) -> None:
        """Note that a try has read a table, as it was before the try wrote to it, and may put files into its folder."""
        found: Pointer = self._transact(pointers.of, self.catalog, attempt, namespace, name)
        base, read = found.base, None
        if base is not None and not pointers.is_view(base):
            place = namespace if found.is_original else attempt.own(namespace)
            with contextlib.suppress(NoSuchTableError):  # nothing of it has been read
                read = history.Read(place, name, base, self._read(base).table.current_snapshot_id)
        self._transact(history.note_read, self.catalog, attempt, folder, read)

    def _check_folders(self, table: TableMetadata, base: Metadata | None) -> None:
        """ForbiddenError if a table is to have files in the folder of another one, where they would count as left behind."""
        places = files.places(table)
        if base is None or places != files.places(base.table):
            other = self._transact(folders.overlapping, self.catalog, places, table.location)
            if other is not None:
                raise ForbiddenError(f"The files of a table cannot be in {other}, the folder of another one: choose another place.")

    def _has_made(self, caller: Caller, namespace: str, name: str, mark: str) -> bool:
        found: bool = self._transact(pointers.has_made, self.catalog, caller.attempt, namespace, name, mark=mark)
        return found

    def store(
        self, caller: Caller, changes: list[Change], *, streams: bool = False, taken: type[CatalogError] = CommitFailedError
    ) -> bool:
        """Store the new pointers. False if the same request was faster: a client that got no answer has repeated it.

        If another one was faster, or the try has ended, nothing is stored, and the new files are deleted. If a try `streams`, its
        pointers are published.
        """
        try:
            refused: str | None = self._transact(_store, self.catalog, caller, changes, streams=streams)
            if streams and refused is not None and caller.attempt is not None:
                # The client reads the table again, and repeats its commit upon what others wrote.
                self._transact(tries.follow, caller.attempt)
        except StaleTryError:
            self._delete_new(caller, changes)
            raise
        if refused is None or not self._delete_new(caller, changes):
            fault_points.point("tables.stored")
            return True
        if refused is DONE or all(one.mark and self._has_made(caller, one.namespace, one.name, one.mark) for one in changes):
            return False
        raise taken(refused)

    def _delete_new(self, caller: Caller, changes: Sequence[Change]) -> bool:
        """Delete the files of changes that were not stored. False if they were, and a later attempt has met another change."""
        new = [one.location for one in changes if one.is_new and one.location is not None]
        if self._transact(pointers.has_any, self.catalog, caller.attempt, new):
            return False
        for location in new:
            try:
                self.warehouse.delete(location)
            except OSError as error:
                log.warning("the metadata file %s, which was not stored, could not be deleted: %s", location, error)
        return True


def _running(caller: Caller) -> Pinned:
    if caller.attempt is None:
        raise ForbiddenError("Only a running task has a streaming query.")
    return caller.attempt


TABLE, VIEW = "Table", "View"


def _kind(location: str) -> str:
    return VIEW if pointers.is_view(location) else TABLE


def taken(wanted: str, location: str, name: str) -> ExistsError:
    """The error where a table or a view is to get a name that the one at `location` has."""
    kind = _kind(location)
    return ExistsError(f"{kind}{'' if kind == wanted else ' with same name'} already exists: {name}")


#: Of a request with an idempotency key that another process has done.
DONE = "an equal request has been done"


def _store(connection: Connection, catalog: str, caller: Caller, changes: list[Change], *, streams: bool) -> str | None:
    """Store the new pointers of a try or of a person. Returns who was faster, in words; None if they are stored."""
    if not publish.note_request(connection, caller.request):
        return DONE
    if caller.attempt is not None:
        stale = tries.write(connection, caller.attempt, changes)
        if stale is None:
            faster = streaming.publish_epoch(connection, catalog, caller.attempt, changes) if streams else []
            return _changed(faster) if faster else None
        connection.rollback()
        return f"{stale.namespace}.{stale.name} has changed since it was read: this try has written to it at the same time."
    number, moved = publish.publish(connection, catalog, changes, by=caller.name)
    if number is not None:
        names = [f"{one.namespace}.{one.name}" for one in changes]
        extra = {"tables": names, "publication": number}
        entry = audit.begin(connection, "tables.commit", account=caller.name, address=caller.address, extra=extra)
        audit.end(connection, entry, 200)
        return None
    if all(pointers.of(connection, catalog, None, one.namespace, one.name).location == one.location for one in changes):
        return None  # an earlier attempt, whose answer was lost, was stored
    connection.rollback()
    return _changed(moved)


def _changed(moved: Sequence[publish.Row]) -> str:
    return "; ".join(f"{row.namespace}.{row.name} has changed since it was read: {row.writer} wrote it" for row in moved)
