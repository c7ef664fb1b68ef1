"""Poolers such as PgBouncer, between a process and PostgreSQL: one that keeps no session is refused.

Pool processes prepare their statements once, and every process sets limits, its planner's choices and its name once for its
session. A pooler of transactions gives each transaction another session, without them or with those of other processes.
"""

import contextlib
import uuid
from collections.abc import Callable

from psycopg2.extensions import connection as Connection

from paceline.exceptions import CredentialsError

PID = "select pg_backend_pid()"
MARK = "select set_config('paceline.session', %s, false)"
MARKED = "select current_setting('paceline.session', true)"
#: How often two connections mark their sessions in turn. If the pooler is idle, the second connection gets the session of the
#: first one at once; if others use it, the sessions change by chance.
ROUNDS = 10
PROBLEM = "The database URL leads to a pooler that keeps no sessions (such as PgBouncer with pool_mode=transaction)."
FIX = "Point it straight to PostgreSQL, or set pool_mode=session for it."


class PoolerError(CredentialsError):
    """A pooler between this process and PostgreSQL keeps no sessions."""


def check(connection: Connection, connect: Callable[[], Connection]) -> None:
    """PoolerError if a pooler between this process and PostgreSQL keeps no sessions.

    Without a pooler, this costs one statement. `connect` opens another connection to the same server.
    """
    connection.autocommit = True
    try:
        if _ask(connection, PID) == connection.info.backend_pid:
            return
        with contextlib.closing(connect()) as other:
            other.autocommit = True
            if not _keep_sessions(connection, other):
                raise PoolerError(PROBLEM, fix=FIX)
    finally:
        if not connection.closed:
            connection.autocommit = False


def _keep_sessions(*connections: Connection) -> bool:
    """Whether each connection has a session of its own. Some poolers change sessions only until a client sets something."""
    marks = [str(uuid.uuid4()) for _ in connections]
    for _ in range(ROUNDS):
        for connection, mark in zip(connections, marks, strict=True):
            _ask(connection, MARK, mark)
        if [_ask(connection, MARKED) for connection in connections] != marks:
            return False
    return True


def _ask(connection: Connection, statement: str, *parameters: str) -> object:
    value: object
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        [(value,)] = cursor.fetchall()
    return value
