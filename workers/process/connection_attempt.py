"""Tries a connection: logs in if the client of its type is known, else opens its host and port."""

import socket
from collections.abc import Callable
from dataclasses import dataclass

from paceline.authoring.connection import Connection

#: Seconds for an answer.
LIMIT_S = 5.0
#: The port of a type, for a connection without one.
PORTS = {
    "postgres": 5432, "redis": 6379, "mysql": 3306, "mssql": 1433, "oracle": 1521, "mongo": 27017, "http": 80, "https": 443,
    "ssh": 22, "sftp": 22, "ftp": 21, "smtp": 25, "cassandra": 9042, "elasticsearch": 9200, "trino": 8080, "hive_cli": 10000,
    "hiveserver2": 10000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    ok: bool
    message: str


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
