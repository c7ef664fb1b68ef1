"""The connection of a pool process: autocommit, with the prepared statements of the hot path, reopened after an error."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import register_default_json

from scheduler.authoring import xcom
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.dags import versions
from scheduler.store.db import fencing, rows, sqlstates
from scheduler.store.db.database import connect
from scheduler.store.db.fencing import Writer
from scheduler.store.worker import crashes
from scheduler.store.worker.hot_statements import STATEMENTS

T = TypeVar("T")

#: Makes commits durable even if synchronous_commit is off on the server; a stricter setting stays.
DURABLE = "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"
OPTIONS = (
    # The locks of a stopped pool process must be released before its worker is declared lost.
    "-c idle_in_transaction_session_timeout=5s"
    # Every statement has an index in its order, and statistics of a new or emptied table are useless: always use indexes and
    # nested loops, and never plan again.
    " -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_sort=off"
    " -c plan_cache_mode=force_generic_plan -c jit=off"
)


class WorkerConnection:
    """One connection for the lifetime of a pool process, without engine and ORM; after an error the next call opens a new one."""

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self.worker_id = worker_id
        self.settings = settings
        self._acts_as: str | None = None
        self._connection: Connection | None = None
        self._cursor: Cursor | None = None
        self._versions = versions.Versions()

    def dag(self, version_id: int) -> SerializedDag:
        """The DAG of a version, cached."""
        return self._versions.get(version_id, lambda: self.value(versions.READ, (version_id,)))

    def now(self) -> datetime:
        """The time by the database's clock."""
        found: datetime = self.value("select clock_timestamp()", ())
        return found

    def read(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self.run(statement, parameters).fetchall()

    def value(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any], default: Any = None) -> Any:
        """The one value of a statement, `default` without a row."""
        return next((value for (value,) in self.read(statement, parameters)), default)

    def dicts(self, statement: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows of a statement as dicts."""
        cursor = self.run(statement, parameters)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def objects(self, kind: type[T], statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[T]:
        """The rows of a statement as dataclasses, see store/db/rows.py."""
        return rows.of_cursor(kind, self.run(statement, parameters))

    def write(self, writer: Writer, statement: str, parameters: Sequence[Any]) -> int:
        """Run a statement of `fencing.guarded`, and return how many rows it wrote. StaleTryError if the try is stale."""
        written: int | None = self.value(statement, (*writer.key, *parameters))
        if written is None:
            raise fencing.stale(writer)
        return written

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Cursor:
        """Run one statement; after an error the connection is closed."""
        try:
            cursor = self._cursor
            if cursor is None or self._acts_as != self.worker_id:
                cursor = self._open()
            cursor.execute(statement, parameters)
        except psycopg2.Error as error:
            self.close()
            raise sqlstates.lost(error) or error from None
        return cursor

    def close(self) -> None:
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            connection.close()

    def _open(self) -> Cursor:
        if self._cursor is None:
            self._connection = connect(self.settings, "paceline worker", OPTIONS)
            self._connection.autocommit = True
            # Only XComs have columns of type json; others are jsonb.
            register_default_json(self._connection, loads=xcom.decode)
            cursor = self._connection.cursor()
            cursor.execute(f"{DURABLE};{crashes.NOTE};{STATEMENTS}")
            self._cursor, self._acts_as = cursor, None
        if self._acts_as != self.worker_id:
            self._cursor.execute("select set_config('paceline.actor', %s, false)", (self.worker_id,))
            self._acts_as = self.worker_id
        return self._cursor
