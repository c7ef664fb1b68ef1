"""Joins the small files of a table for a person: one pass, and a publication of its own. Tasks do so in their own publication."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import CommitTableRequest, CommitTableResponse, Table, TableIdentifier
from sqlalchemy import Engine

from paceline.exceptions import ConflictError, NotFoundError
from scheduler.catalog.access import Caller
from scheduler.catalog.errors import CommitFailedError
from scheduler.catalog.files import Metadata
from scheduler.catalog.tables import Tables
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.tables import folders, pointers

if TYPE_CHECKING:
    from paceline.tables.compaction import Compacted


class _Publishing(NoopCatalog):
    """What a table of pyiceberg commits to: the catalog of this process, for a person."""

    def __init__(self, tables: Tables, caller: Caller) -> None:
        super().__init__(tables.catalog)
        self._tables = tables
        self._caller = caller

    def commit_table(self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]) -> CommitTableResponse:
        namespace, name = ".".join(table.name()[:-1]), table.name()[-1]
        identifier = TableIdentifier(namespace=table.name()[:-1], name=name)
        request = CommitTableRequest(identifier=identifier, requirements=requirements, updates=updates)
        try:
            answers = self._tables.commit(self._caller, {(namespace, name): json.loads(request.model_dump_json())})
        except CommitFailedError as error:
            raise ConflictError(f"The table {namespace}.{name} was changed meanwhile: run the command again.") from error
        after = answers[namespace, name]
        return CommitTableResponse(metadata=after.table, metadata_location=after.location)


def compact(settings: Settings, engine: Engine, namespace: str, name: str, *, most_bytes: int | None, by: str) -> Compacted:
    """Join small files of a table, of up to `most_bytes` together; None is the default of tasks.

    NotFoundError; ConflictError if a task changes the table meanwhile.
    """
    tables = Tables(settings, engine)
    location = transact(engine, pointers.of, tables.catalog, None, namespace, name).location
    if location is None or pointers.is_view(location):
        raise NotFoundError(f"There is no table {namespace}.{name}: see `paceline tables list`.")
    found = tables.warehouse.metadata(location)
    transact(engine, folders.use, tables.catalog, found.table.location)
    return publish(tables, (*namespace.split("."), name), found, most_bytes=most_bytes, by=by)


def publish(tables: Tables, identifier: tuple[str, ...], found: Metadata, *, most_bytes: int | None, by: str) -> Compacted:
    """Join small files of a table as it was found, and publish that. ConflictError if it has changed since."""
    from paceline.tables import compaction, upkeep

    publishing = _Publishing(tables, Caller(by, may_write=True, is_admin=True))
    return compaction.compact(
        Table(identifier, found.table, found.location, tables.warehouse.io, publishing), most_bytes or upkeep.MOST_BYTES
    )
