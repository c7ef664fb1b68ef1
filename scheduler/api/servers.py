"""PostgreSQL and Redis as a web process sees them: the connections that its requests share."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from sqlalchemy import Connection, Engine, event

from paceline.exceptions import UnreachableError
from scheduler.messaging import publisher
from scheduler.messaging.brokers import BROKER_ERRORS, Brokers, translate
from scheduler.settings import Settings
from scheduler.store.db import database

R = TypeVar("R")

#: Seconds for one attempt to connect or to read. There are two attempts.
TIMEOUT_S = 1.0
#: Seconds for which the result of a check is used again.
FRESH_S = 1.0
#: Seconds for which a request waits for a server that accepts no writes, as during a failover.
PATIENCE_S = 5.0
#: The execution option with the actor of a request. See database.ACTOR, which is that of the whole process.
WHO = "paceline_web_actor"


class Broker:
    """Checks Redis and reads the lengths of queues, over one connection to each broker, with a short timeout.

    While Redis does not answer, one request waits for it, and the others get the result of the last check: otherwise probes would
    soon hold all threads of the process.
    """

    def __init__(self, settings: Settings) -> None:
        self._brokers = Brokers(settings, TIMEOUT_S)
        self._using = threading.Lock()
        self._problem: UnreachableError | None = None
        self._used_at: float | None = None

    def check(self) -> list[str]:
        """What is wrong with the brokers that do not answer. If none does: UnreachableError or CredentialsError."""
        if self._is_stale() and self._using.acquire(blocking=self._used_at is None):
            try:
                if self._is_stale():  # and not checked by another request meanwhile
                    self._use(lambda: self._brokers.each(lambda client: client.ping()))
            finally:
                self._using.release()
        self._raise_problem()
        return [str(problem) for problem in self._brokers.problems()]

    def lengths(self, queues: Sequence[str]) -> dict[str, int]:
        """The number of messages in each queue. UnreachableError or CredentialsError."""
        return self.call(lambda brokers: publisher.lengths(brokers, queues))

    def call(self, work: Callable[[Brokers], R]) -> R:
        """Return `work(brokers)`. UnreachableError or CredentialsError."""
        self.check()
        with self._using:
            self._raise_problem()
            found = self._use(lambda: work(self._brokers))
        self._raise_problem()
        return cast(R, found)

    def close(self) -> None:
        self._brokers.close()

    def _is_stale(self) -> bool:
        return self._used_at is None or time.monotonic() - self._used_at >= FRESH_S

    def _use(self, work: Callable[[], R]) -> R | None:
        try:
            found = work()
        except BROKER_ERRORS as error:
            self._problem = next(iter(self._brokers.problems()), translate(error))
            return None
        else:
            self._problem = None
            return found
        finally:
            self._used_at = time.monotonic()

    def _raise_problem(self) -> None:
        problem = self._problem
        if problem is not None:
            # A new one each time: one that is raised again keeps the frames of all requests.
            raise type(problem)(str(problem))


def create_engine(settings: Settings) -> Engine:
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
