"""The connections of a web process to PostgreSQL, and the name under which a request changes anything."""

import contextlib

from sqlalchemy import Connection, Engine, event

from scheduler.settings import Settings
from scheduler.store.db import database

#: Seconds for which a request waits for a server that accepts no writes, as during a failover.
PATIENCE_S = 5.0
#: The execution option with the actor of a request. See database.ACTOR, which is that of the whole process.
WHO = "paceline_web_actor"


def create(settings: Settings) -> Engine:
    """The engine of a web process. It has at most web.pool_size connections."""
    engine = database.create(
        settings.as_web(), pool_size=settings.web.pool_size, application="paceline web", actor="api:", patience_s=PATIENCE_S
    )
    engine.pool._max_overflow = 0  # type: ignore[attr-defined]
    event.listen(engine, "begin", _name_actor)
    return engine


def acting_as(engine: Engine, actor: str) -> Engine:
    """The same connections; state changes over the new engine have this actor in their events."""
    return engine.execution_options(**{WHO: actor})


def _name_actor(connection: Connection) -> None:
    actor = connection.get_execution_options().get(WHO)
    if actor is not None:
        # Not through SQLAlchemy, which is just beginning this transaction.
        with contextlib.closing(connection.connection.cursor()) as cursor:
            cursor.execute("select set_config('paceline.actor', %s, true)", (actor,))
