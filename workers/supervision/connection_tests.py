"""Tests connections for the web UI: a worker reaches what its tasks reach, and has their drivers."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Engine

from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError
from scheduler.messaging import connection_tests
from scheduler.messaging.brokers import Brokers
from scheduler.messaging.connection_tests import Answer, ConnectionTest
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from workers.process.logs import worker_log
from workers.process.secrets_backend import EnvironmentBackend

#: Seconds for an answer.
LIMIT_S = 5.0
#: The port of a type, for a connection without one.
PORTS = {
    "postgres": 5432, "redis": 6379, "mysql": 3306, "mssql": 1433, "oracle": 1521, "mongo": 27017, "http": 80, "https": 443,
    "ssh": 22, "sftp": 22, "ftp": 21, "smtp": 25, "cassandra": 9042, "elasticsearch": 9200, "trino": 8080, "hive_cli": 10000,
    "hiveserver2": 10000, "spark_connect": 15002,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    ok: bool
    message: str


class ConnectionTests:
    """The tests that web processes ask of this worker, one at a time, beside its heartbeats."""

    def __init__(self, engine: Engine, settings: Settings, *, queues: list[str], worker: str) -> None:
        """`worker` is the name that the answers give."""
        self._engine, self._settings, self._brokers = engine, settings, Brokers(settings)
        self._queues, self._worker = queues, worker
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Begin the next test, unless one runs. Returns at once."""
        if self._thread is not None and self._thread.is_alive():
            return
        if test := connection_tests.take(self._brokers, self._queues):
            # A daemon: a name server may take minutes to answer, and the worker must be able to end.
            self._thread = threading.Thread(target=self._answer, args=(test,), name="connection test", daemon=True)
            self._thread.start()

    def _answer(self, test: ConnectionTest) -> None:
        worker_log.info("testing connection %s for the web UI", test.conn_id)
        tried = _tried(lambda: self._connection(test.conn_id))
        connection_tests.answer(self._brokers, test, Answer(tried.ok, tried.message, self._worker))

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


def attempt(connection: Connection) -> Attempt:
    """Try a connection. No error of a client leaves it, and the message holds no password."""
    name = f"Connection {connection.conn_id}"
    client = CLIENTS.get(connection.conn_type)
    port = connection.port or PORTS.get(connection.conn_type)
    if not connection.host or (client is None and not port):
        return Attempt(ok=False, message=f"{name} cannot be tried: it has no host with a port, and its type has no known client.")
    place = f"{connection.host}:{port}"
    try:
        if client is not None:
            client(connection)
            return Attempt(ok=True, message=f"{name} works: {place} accepted the login.")
        with socket.create_connection((connection.host, port), timeout=LIMIT_S):
            return Attempt(ok=True, message=f"{place} of connection {connection.conn_id} can be reached. The login was not tried.")
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if connection.password:
            why = why.replace(connection.password, "***")
        return Attempt(ok=False, message=f"{name} fails at {place}: {why}")


def _postgres(connection: Connection) -> None:
    import psycopg2

    psycopg2.connect(
        host=connection.host, port=connection.port or PORTS["postgres"], user=connection.login, password=connection.password,
        dbname=connection.schema or None, connect_timeout=int(LIMIT_S),
    ).close()  # fmt: skip


def _redis(connection: Connection) -> None:
    import redis

    with redis.Redis(
        host=connection.host or "", port=connection.port or PORTS["redis"], username=connection.login, password=connection.password,
        socket_timeout=LIMIT_S, socket_connect_timeout=LIMIT_S,
    ) as client:  # fmt: skip
        client.ping()


CLIENTS: dict[str, Callable[[Connection], None]] = {"postgres": _postgres, "redis": _redis}
