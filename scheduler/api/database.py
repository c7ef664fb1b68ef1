"""The connections of a web process to PostgreSQL, and the name under which a request changes anything."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg2
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError

from scheduler.settings import Settings
from scheduler.store.db import database, sqlstates
from scheduler.store.db.database import transact

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds for which a request waits for a server that accepts no writes, as during a failover.
PATIENCE_S = 5.0
#: A connection that was used less than this many seconds ago is not tested again.
FRESH_S = 1.0
USED_AT = "paceline_used_at"
#: The execution option with the actor of a request. See database.ACTOR, which is that of the whole process.
WHO = "paceline_web_actor"


def create(settings: Settings) -> Engine:
    """The engine of a web process. It has at most web.pool_size connections."""
    engine = database.create(
        settings.as_web(), pool_size=settings.web.pool_size, application="paceline web", actor="api:", patience_s=PATIENCE_S
    )
    engine.pool._max_overflow = 0  # type: ignore[attr-defined]
    engine.pool._pre_ping = False
    event.listen(engine, "begin", _name_actor)
    event.listen(engine, "connect", _note_use)
    event.listen(engine, "checkout", _ping)
    event.listen(engine, "checkin", _note_use)
    return engine


def read(engine: Engine, work: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return `work(connection, ...)`, which changes nothing, without a transaction: it would cost three messages to the server.

    Each statement sees what was committed before it, as in transactions of Paceline. After a lost connection or a lost race, it is
    done again in a transaction.
    """
    try:
        with engine.connect() as connection, _autocommit(connection):
            return work(connection, *args, **kwargs)
    except ValueError:
        return transact(engine, work, *args, **kwargs)  # it translates the errors of values that cannot be sent
    except DBAPIError as error:
        if error.connection_invalidated or sqlstates.is_undone(error.orig) or sqlstates.is_lost_race(error.orig):
            return transact(engine, work, *args, **kwargs)
        raise


@contextlib.contextmanager
def _autocommit(connection: Connection) -> Iterator[None]:
    """Autocommit of the driver: SQLAlchemy's isolation level would cost two messages to the server."""
    raw: Any = connection.connection.dbapi_connection
    raw.autocommit = True
    try:
        yield
    finally:
        if not raw.closed:
            raw.autocommit = False


def _ping(connection: Any, record: Any, _: object) -> None:
    if time.monotonic() - record.info.get(USED_AT, 0.0) < FRESH_S:
        return
    try:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute("select 1")
        connection.rollback()
    except psycopg2.Error as error:
        raise DisconnectionError(str(error)) from error


def _note_use(_: object, record: Any) -> None:
    record.info[USED_AT] = time.monotonic()


def acting_as(engine: Engine, actor: str) -> Engine:
    """The same connections; state changes over the new engine have this actor in their events."""
    return engine.execution_options(**{WHO: actor})


def _name_actor(connection: Connection) -> None:
    actor = connection.get_execution_options().get(WHO)
    if actor is not None:
        # Not through SQLAlchemy, which is just beginning this transaction.
        with contextlib.closing(connection.connection.cursor()) as cursor:
            cursor.execute("select set_config('paceline.actor', %s, true)", (actor,))
