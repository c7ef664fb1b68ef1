"""The connection of a pool process: autocommit, with the prepared statements of the hot path, open only while it is used.

A pool process that waits for a message, or runs a long task, holds no connection (docs/adr/0031).
"""

import contextlib
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import register_default_json

from paceline.authoring import xcom
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.dags import versions
from scheduler.store.db import fencing, rows, sqlstates
from scheduler.store.db.database import connect
from scheduler.store.db.fencing import Writer
from scheduler.store.moves.prepared import STATEMENTS
from scheduler.store.worker import crashes

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
#: Seconds without a statement after which a connection closes for which others wait.
BRIEFLY_S = 0.2
#: The longest wait for the end of a connection on the server, in seconds.
ENDS_WITHIN_S = 1.0
_ALL: "weakref.WeakSet[WorkerConnection]" = weakref.WeakSet()
#: Of the thread that forks: `connections` are those that it holds. Other threads may fork at the same time.
_HELD = threading.local()


class WorkerConnection:
    """The one connection of a pool process, without engine and ORM. Each call opens it if it is not open.

    It closes after an error, and after `worker.idle_connection_seconds` without a statement.
    """

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self.worker_id = worker_id
        self.settings = settings
        self._acts_as: str | None = None
        self._connection: Connection | None = None
        self._cursor: Cursor | None = None
        #: Returns the DAG of a version, which never changes. UnreadableVersionError.
        self.dag = lru_cache(maxsize=versions.MAX_CACHED)(self._dag)
        #: Held from a statement until its rows are read, and during a transaction: the connection does not close in between.
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._used_at = 0.0
        #: Whether others probably wait for a connection too, as after a failed attempt: the next one stays open only BRIEFLY_S.
        self.is_contended = False
        #: The variables that libpq reads, from before user code could change them: `ti` may open a connection in user code.
        self._environment = _libpq_variables()
        _ALL.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the next statement opens no connection, unless the idle one closes just before."""
        return self._cursor is not None

    def now(self) -> datetime:
        """The time by the database's clock."""
        now: datetime = self.value("select clock_timestamp()", ())
        return now

    def read(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        with self._lock:
            return self.run(statement, parameters).fetchall()

    def value(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any], default: Any = None) -> Any:
        """The one value of a statement, `default` without a row."""
        return next((value for (value,) in self.read(statement, parameters)), default)

    def dicts(self, statement: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows of a statement as dicts."""
        with self._lock:
            cursor = self.run(statement, parameters)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def objects(self, kind: type[T], statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[T]:
        """The rows of a statement as dataclasses, see store/db/rows.py."""
        with self._lock:
            return rows.of_cursor(kind, self.run(statement, parameters))

    def write(self, writer: Writer, statement: str, parameters: Sequence[Any]) -> int:
        """Run a statement of `fencing.guarded`, and return how many rows it wrote. StaleTryError if the try is stale."""
        written: int | None = self.value(statement, (*writer.key, *parameters))
        if written is None:
            raise fencing.stale(writer)
        return written

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Cursor:
        """Run one statement; after an error the connection is closed. Read its rows under the lock, as `read` does."""
        with self._lock:
            try:
                cursor = self._cursor
                if cursor is None or self._acts_as != self.worker_id:
                    cursor = self._open()
                cursor.execute(statement, parameters)
            except psycopg2.Error as error:
                self.close()
                raise sqlstates.lost(error) or error from None
            self._used_at = time.monotonic()
            return cursor

    @contextlib.contextmanager
    def transaction(self, statement: str, parameters: Mapping[str, Any]) -> Iterator[None]:
        """A transaction that begins with a statement. It commits at the end; after an error the connection is closed."""
        with self._lock:
            self.run(f"begin; {statement}", parameters)
            try:
                yield
            except BaseException:
                self.close()
                raise
            self.run("commit")

    def close(self) -> None:
        with self._lock:
            connection, self._connection, self._cursor = self._connection, None, None
            if connection is not None:
                self._closed.set()
                connection.close()

    def close_for_others(self) -> None:
        """Close the connection, and wait until the server has ended its process: until then, it counts towards max_connections."""
        with contextlib.suppress(OSError, psycopg2.Error), self._lock:
            if self._connection is None:
                return
            # The duplicate outlives the close: the server closes its end when the process there has ended.
            with socket.socket(fileno=os.dup(self._connection.fileno())) as server:
                self.close()
                server.settimeout(ENDS_WITHIN_S)
                while server.recv(1024):
                    pass

    def hold(self) -> None:
        """Let no other thread use or close the connection, until `release` in this thread or `forget` in a forked process."""
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def forget(self) -> None:
        """Leave the connection to the process that this one was forked from. psycopg2 closes it only in that process."""
        self._connection = self._cursor = None
        self._lock = threading.RLock()

    def _dag(self, version_id: int) -> SerializedDag:
        return versions.parsed(version_id, self.value(versions.READ, (version_id,)))

    def _open(self) -> Cursor:
        if self._cursor is None:
            hold_s = min(self.settings.worker.idle_connection_seconds, BRIEFLY_S if self.is_contended else math.inf)
            self.is_contended = True  # until it is open
            with _environment(self._environment):
                connection = self._connection = connect(self.settings, "paceline task", OPTIONS)
            connection.autocommit = True
            # Only XComs and states have columns of type json; others are jsonb.
            register_default_json(connection, loads=xcom.decode)
            cursor = connection.cursor()
            cursor.execute(f"{DURABLE};{crashes.NOTE};{STATEMENTS}")
            self._cursor, self._acts_as, self.is_contended = cursor, None, False
            if hold_s:
                self._closed = closed = threading.Event()
                # Without a thread it stays open, as with idle_connection_seconds = 0.
                with contextlib.suppress(RuntimeError):
                    threading.Thread(target=self._close_idle, args=(closed, hold_s), name="idle-connection", daemon=True).start()
        if self._acts_as != self.worker_id:
            self._cursor.execute("select set_config('paceline.actor', %s, false)", (self.worker_id,))
            self._acts_as = self.worker_id
        return self._cursor

    def _close_idle(self, closed: threading.Event, hold_s: float) -> None:
        """Close the connection after `hold_s` seconds without a statement. The thread ends with the connection."""
        pause_s = hold_s
        while not closed.wait(pause_s):
            with self._lock:
                if closed.is_set():
                    return
                pause_s = self._used_at + hold_s - time.monotonic()
                if pause_s <= 0:
                    self.close()
                    return


def _libpq_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("PG") or name == "HOME"}


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Give libpq these variables."""
    changed = _libpq_variables()
    if changed == wanted:
        yield
        return
    _replace_variables(changed, wanted)
    try:
        yield
    finally:
        _replace_variables(wanted, changed)


def _replace_variables(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old.keys() - new.keys():
        del os.environ[name]
    os.environ.update(new)


def _before_fork() -> None:
    """Wait until no other thread is inside libpq or OpenSSL, whose locks would stay locked in the forked process."""
    _HELD.connections = []
    for each in list(_ALL):
        each.hold()
        _HELD.connections.append(each)


def _after_fork(leave: Callable[[WorkerConnection], None]) -> None:
    while _HELD.connections:
        leave(_HELD.connections.pop())


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(WorkerConnection.release),
    after_in_child=lambda: _after_fork(WorkerConnection.forget),
)
