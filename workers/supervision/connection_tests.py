"""Tests connections for the web UI: a worker reaches what its tasks reach, and has their drivers."""

import threading
from collections.abc import Callable

from sqlalchemy import Engine

from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError
from scheduler.messaging import connection_tests, wakeups
from scheduler.messaging.connection_tests import Answer, ConnectionTest
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from workers.process.connection_attempt import Attempt, attempt
from workers.process.logs import worker_log
from workers.process.secrets_backend import EnvironmentBackend


class ConnectionTests:
    """The tests that web processes ask of this worker, one at a time, beside its heartbeats."""

    def __init__(self, engine: Engine, settings: Settings, *, queues: list[str], worker: str) -> None:
        """`worker` is the name that the answers give."""
        self._engine, self._settings, self._redis = engine, settings, wakeups.client(settings)
        self._queues, self._worker = queues, worker
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Begin the next test, unless one runs. Returns at once."""
        if self._thread is not None and self._thread.is_alive():
            return
        if test := connection_tests.take(self._redis, self._queues):
            # A daemon: a name server may take minutes to answer, and the worker must be able to end.
            self._thread = threading.Thread(target=self._answer, args=(test,), name="connection test", daemon=True)
            self._thread.start()

    def _answer(self, test: ConnectionTest) -> None:
        worker_log.info("testing connection %s for the web UI", test.conn_id)
        tried = _tried(lambda: self._connection(test.conn_id))
        connection_tests.answer(self._redis, test, Answer(tried.ok, tried.message, self._worker))

    def _connection(self, conn_id: str) -> Connection:
        """As for a task: that of the environment, then the stored one."""
        from scheduler.store.secrets import connections
        from scheduler.store.secrets.cipher import Cipher

        own = EnvironmentBackend().connection(conn_id)
        return own or transact(self._engine, connections.connection, conn_id, Cipher.of(self._settings, make=False))


def _tried(read: Callable[[], Connection]) -> Attempt:
    try:
        return attempt(read())
    except PacelineError as error:  # it is missing, or cannot be decrypted
        return Attempt(ok=False, message=str(error))
    except Exception as error:
        worker_log.exception("a connection could not be read for its test")
        return Attempt(ok=False, message=f"The worker could not read the connection: {type(error).__name__}.")
