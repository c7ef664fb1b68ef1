"""Renews the heartbeat of one process, in a thread and on a connection of its own, which wait only for PostgreSQL.

So the heartbeat continues while other work of the process is blocked by the broker, a slow query or a lock. A worker with a pooler
sends it over the pooler, and needs a connection of its own only while the pooler does not answer at once.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg2
from psycopg2 import errors
from psycopg2.extensions import connection as Connection

from scheduler.process import fault_points
from scheduler.process.health import VitalThread
from scheduler.settings import Settings
from scheduler.store.db.database import begin_session, reach
from scheduler.store.worker.pooled import PooledCursor

log = logging.getLogger("paceline.heartbeat")

#: The part of the timeout after which an attempt is repeated on a new connection, because a broken connection may not report an
#: error. Two attempts fit into a timeout.
ATTEMPT = 0.45
#: The minimum of libpq.
CONNECT_TIMEOUT_S = 2
PAUSE_S = 0.25
#: Seconds for an answer of the pooler, whose connections may all be busy.
POOLER_TIMEOUT_S = 2.0
#: Returns whether a person asked this process to end when its running tasks have ended. It need not wait for the disk.
RENEW = """
set local synchronous_commit = off;
update process p set heartbeat_at = clock_timestamp() where p.id = %s and p.stopped_at is null
returning exists (select from worker_drain d where d.process_id = p.id)
"""
#: Record that this process takes no more tasks. Its row tells others, such as `paceline workers list` and `paceline autoscale`.
DRAINING = "insert into worker_drain (process_id, asked_by) values (%s, 'a signal') on conflict do nothing"
#: Which of these dispatches the worker holds. A lock on the whole table, as of a migration, must not delay the next heartbeat.
HELD = """
set local lock_timeout = '100ms';
select dispatch_id::text from task_instance
 where id = any(%(instances)s::bigint[]) and state = 'running' and worker = %(id)s and dispatch_id = any(%(dispatches)s::uuid[])
"""


def boottime() -> float:
    """Seconds of a clock that never jumps and includes the sleep of the machine, the same for all of its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class HeartbeatConnection:
    """A connection on which no call takes longer than `timeout_s`, except connecting. With the address of a `pooler`, it is open
    only while that does not answer.
    """

    def __init__(self, settings: Settings, application: str, timeout_s: float, pooler: str | None = None) -> None:
        self._settings = settings
        self._pooler = pooler
        self._application = application
        self._timeout_s = timeout_s
        self._connection: Connection | None = None

    def renew(self, process_id: str) -> bool | None:
        """Renew the heartbeat; return whether this process is to drain, None if it was declared lost.

        psycopg2.Error if PostgreSQL does not answer in time.
        """
        fault_points.point("heartbeat.commit")
        renewed = self._run(process_id, RENEW, (process_id,))
        fault_points.point("heartbeat.committed")
        return next((bool(drains) for (drains,) in renewed), None)

    def doubted(self, process_id: str, running: Mapping[str, int]) -> dict[str, int]:
        """Return the dispatches of `running` (with the IDs of their task instances) that are not stored as running on this worker.

        It is empty if their table is locked. psycopg2.Error as in `renew`.
        """
        if not running:
            return {}
        asked = {"id": process_id, "instances": list(running.values()), "dispatches": list(running)}
        try:
            held = {dispatch_id for (dispatch_id,) in self._run(process_id, HELD, asked)}
        except errors.LockNotAvailable:
            return {}
        return {dispatch_id: ti_id for dispatch_id, ti_id in running.items() if dispatch_id not in held}

    def draining(self, process_id: str) -> None:
        """Record that this process drains. psycopg2.Error as in `renew`."""
        self._run(process_id, DRAINING, (process_id,))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg2.Error):
                connection.close()

    def _run(self, process_id: str, statement: str, parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement, and return its rows."""
        if self._pooler is not None:
            try:
                rows = self._pooled(self._pooler, process_id, statement, parameters)
            except errors.LockNotAvailable:  # an answer
                raise
            except psycopg2.OperationalError as error:
                log.debug("%s", error)
            else:
                self.close()
                return rows
        try:
            connection = self._connection or self._connect()
            with self._cut_off_late(connection), connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return cursor.fetchall() if cursor.description else []
        except psycopg2.Error:
            self.close()
            raise

    def _pooled(self, pooler: str, process_id: str, statement: str, parameters: Any) -> list[tuple[Any, ...]]:
        cursor = PooledCursor(pooler, timeout_s=POOLER_TIMEOUT_S)
        try:
            cursor.execute(process_id, statement, parameters)
            return cursor.fetchall()
        finally:
            cursor.close()

    def _connect(self) -> Connection:
        connection = self._connection = reach(self._settings, self._application, timeout_s=CONNECT_TIMEOUT_S)
        with self._cut_off_late(connection):
            begin_session(connection, self._settings)
        connection.autocommit = True
        return connection

    @contextlib.contextmanager
    def _cut_off_late(self, connection: Connection) -> Iterator[None]:
        """Shut the socket down after the timeout, so that waiting for an answer ends with an error."""
        timer = threading.Timer(self._timeout_s, _shut_down, (connection,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class Listener:
    """What a process tells the thread that renews its heartbeat, and what it does after each attempt; by default nothing."""

    def is_wanted(self) -> bool:
        """Whether to renew. The entry of a process that hangs must expire."""
        return True

    def is_draining(self) -> bool:
        """Whether this process drains, which is recorded once."""
        return False

    def claimed(self) -> Mapping[str, int]:
        """The dispatches that this worker runs, with the IDs of their task instances."""
        return {}

    def renewed(self, process_id: str, sent_at: float) -> None:
        """The heartbeat is renewed; `sent_at` is the `boottime` before the renewal was sent."""

    def drain(self) -> None:
        """A person asked this worker to drain."""

    def doubted(self, dispatches: Mapping[str, int]) -> None:
        """The database does not have these of `claimed` as running on this worker."""

    def refused(self, process_id: str) -> None:
        """This process was declared lost."""

    def failed(self, error: BaseException | None) -> None:
        """PostgreSQL did not answer."""


class Renewal(VitalThread):
    """The thread that renews the heartbeat of the process with `listener`."""

    def __init__(
        self, settings: Settings, listener: Listener, *, process_id: Callable[[], str], interval_s: float, timeout_s: float,
        application: str = "paceline heartbeat", pooler: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name="heartbeat", daemon=True)
        self._connection = HeartbeatConnection(settings, application, timeout_s * ATTEMPT, pooler)
        self._process_id = process_id
        self._interval_s = interval_s
        self._listener = listener
        self._ended = threading.Event()
        self._refused_id: str | None = None
        self._draining_id: str | None = None

    def is_refused(self, process_id: str) -> bool:
        """Whether the last renewal found that this process had been declared lost."""
        return self._refused_id == process_id

    def work(self) -> None:
        while not self._ended.is_set():
            sent_at = boottime()
            answered = not self._listener.is_wanted() or self._attempt(sent_at)
            pause_s = self._interval_s if answered else min(PAUSE_S, self._interval_s)
            self._ended.wait(max(pause_s - (boottime() - sent_at), 0.0))
        self._connection.close()

    def end(self) -> None:
        """Stop renewing; a heartbeat that is being sent may still arrive."""
        self._ended.set()

    def _attempt(self, sent_at: float) -> bool:
        process_id, running = self._process_id(), self._listener.claimed()
        try:
            drains = self._connection.renew(process_id)
            if drains is not None:
                self._listener.renewed(process_id, sent_at)
                if drains:
                    self._listener.drain()
                self._record_draining(process_id)
                if doubted := self._connection.doubted(process_id, running):
                    self._listener.doubted(doubted)
        except psycopg2.Error as error:
            self._listener.failed(error)
            return False
        except Exception:
            log.exception("a heartbeat failed; it will be repeated soon")
            return False
        if drains is None:
            self._refused_id = process_id
            self._listener.refused(process_id)
        return True

    def _record_draining(self, process_id: str) -> None:
        """Only what other processes display depends on it, so an error does not count as a failed heartbeat."""
        if self._listener.is_draining() and self._draining_id != process_id:
            self._draining_id = process_id
            try:
                self._connection.draining(process_id)
            except psycopg2.Error as error:
                log.warning("that this process drains could not be stored: %s", str(error).strip())


def _shut_down(connection: Connection) -> None:
    with contextlib.suppress(psycopg2.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as ended:
        ended.shutdown(socket.SHUT_RDWR)
