"""Removes the older of two schemas or sort orders of a table that have one number.

Two programs that replaced a table at the same time could leave such a table, which Iceberg for Java does not read. The catalog now
gives numbers itself (see numbering.py), and does not change what was written before.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry
from sqlalchemy import Engine

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from scheduler.catalog import files
from scheduler.catalog.access import Caller
from scheduler.catalog.errors import CommitFailedError
from scheduler.catalog.tables import Tables
from scheduler.settings import Settings
from scheduler.store.db import clock
from scheduler.store.db.database import transact
from scheduler.store.tables import pointers
from scheduler.store.tables.pointers import Change


@dataclass(frozen=True, slots=True)
class Repaired:
    """How many schemas and sort orders were removed."""

    schemas: int
    sort_orders: int


def repair(settings: Settings, engine: Engine, namespace: str, name: str, *, by: str) -> Repaired:
    """Publish a table whose schemas and sort orders have numbers of their own; nothing if they have them already.

    Of those with one number, the last stays: the newest commit has written it. PacelineError for two partition specs with one
    number. NotFoundError; ConflictError if a task changes the table meanwhile.
    """
    tables = Tables(settings, engine)
    location = transact(engine, pointers.of, tables.catalog, None, namespace, name).location
    if location is None or pointers.is_view(location):
        raise NotFoundError(f"There is no table {namespace}.{name}: see `paceline tables list`.")
    table = tables.warehouse.metadata(location).table
    if doubled := _doubled(table.partition_specs, "spec_id"):
        raise PacelineError(
            f"The table {namespace}.{name} has two partitionings with the number {doubled[0]}, and nothing tells which of them a"
            " file has: roll it back to a publication before, or copy its rows into a new table."
        )
    done = Repaired(len(_doubled(table.schemas, "schema_id")), len(_doubled(table.sort_orders, "order_id")))
    if done.schemas or done.sort_orders:
        after = tables.warehouse.write(_repaired(table, location, transact(engine, clock.now)), location)
        change = Change(namespace=namespace, name=name, expected=location, location=after, facts=files.facts(table, table))
        try:
            tables.store(Caller(by, may_write=True, is_admin=True), [change])
        except CommitFailedError as error:
            raise ConflictError(f"The table {namespace}.{name} was changed meanwhile: run the command again.") from error
    return done


def _doubled(things: Sequence[Any], field: str) -> list[int]:
    """The numbers that more than one thing has, each as often as it is too many."""
    counted = Counter(getattr(one, field) for one in things)
    return sorted((counted - Counter(dict.fromkeys(counted, 1))).elements())


def _repaired(table: TableMetadata, location: str, now: datetime) -> TableMetadata:
    written = MetadataLogEntry(metadata_file=location, timestamp_ms=table.last_updated_ms)
    return table.model_copy(
        update={
            "schemas": _last(table.schemas, "schema_id"),
            "sort_orders": _last(table.sort_orders, "order_id"),
            "metadata_log": [*table.metadata_log, written],
            "last_updated_ms": max(int(now.timestamp() * 1000), table.last_updated_ms),
        }
    )


def _last(things: Sequence[Any], field: str) -> list[Any]:
    """The last thing with each number."""
    return list({getattr(one, field): one for one in things}.values())
