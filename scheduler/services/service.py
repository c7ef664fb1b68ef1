"""A service: one duty of a scheduler, declared in one file. The loop runs every service that scheduler/services/loop.py lists.

A service file declares, from top to bottom: its name, the SQL condition of pending work, the wakeups that make it due, its
interval, one pass (`run_once`) with its requests to the loop, and its decisions. To add a duty, write such a file and add
the service to that list.
"""

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from paceline.exceptions import PacelineError
from scheduler.settings import Settings
from scheduler.store.db import sqlstates

#: Seconds after which a service runs again, even if no work is pending.
LONGEST_SKIP_S = 30.0
#: As LONGEST_SKIP_S, for a shared service whose work is pending while another scheduler reads the wakeups.
LONGEST_SHARED_SKIP_S = 5.0
#: The share of its interval by which a service may run early. One query then checks all services that are due soon. With a
#: half, services that have the same interval always share a query.
TOGETHER = 0.5


@dataclass(slots=True)
class Timer:
    """When one service is due again, by the monotonic clock of this process."""

    interval_s: float
    due_at: float = 0.0
    _ran_at: float = -math.inf
    _by_interval: bool = False

    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    def is_due_soon(self) -> bool:
        """Whether it is due now, or early enough to join the services that are due."""
        return time.monotonic() >= self.due_at - (TOGETHER * min(self.interval_s, 1.0) if self._by_interval else 0.0)

    def can_skip(self, longest_s: float = LONGEST_SKIP_S) -> bool:
        """Whether it is due only because its interval is over, and has run in the last `longest_s` seconds."""
        return self._by_interval and self.due_at != 0.0 and time.monotonic() < self._ran_at + longest_s

    def wake(self) -> None:
        """Make it due now, because of an event."""
        self.due_at = 0.0

    def offer(self) -> None:
        """Make it due now, if its condition finds work: it can be skipped, unless it is to run soon at a time that it requested."""
        self.due_at = time.monotonic() if self._by_interval and self.due_at != 0.0 else 0.0

    def ran(self, again_in_s: float | None = None) -> None:
        """Make it due after `again_in_s`, or else after the interval."""
        self._ran_at = time.monotonic()
        self.skip()
        if again_in_s is not None:
            self.due_at, self._by_interval = self._ran_at + again_in_s, False

    def skip(self) -> None:
        """Make it due after the interval, without having run. Jitter keeps schedulers from polling at the same time."""
        self.due_at = time.monotonic() + self.interval_s * random.uniform(0.9, 1.1)  # noqa: S311
        self._by_interval = True


K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

AT_ONCE = 0.0
#: Characters of the reason why an item failed.
LONGEST_REASON = 1000
#: Seconds after which a service retries rows that another scheduler had locked.
HELD_PAUSE_S = 0.02
#: A logging level and a message.
LogLine = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The requests of one pass of a service to the loop."""

    #: Names of the services to run now. These are not the kinds of wakeups, of which one may run several services.
    services: Collection[str] = ()
    #: Names of the services to run now if their condition (`pending`) finds work, which is read after this pass.
    if_pending: Collection[str] = ()
    #: Runs to examine now, as by the wakeup "run".
    runs: Collection[int] = ()
    #: Seconds until the next pass; None is the interval of the service.
    again_in_s: float | None = None
    log: Sequence[LogLine] = ()


class BaseService:
    """What the loop uses of a service: its declaration, and the methods that the loop calls."""

    name: ClassVar[str]
    #: An SQL condition: the service may find work, now or before the next check (see store/upkeep/pending_work). A service
    #: without it runs at each interval.
    pending: ClassVar[str | None] = None
    #: Whether it finds the same work in every scheduler. Then only the scheduler that reads the wakeups needs to poll often.
    is_shared: ClassVar[bool] = False
    #: Kinds of wakeups (scheduler/messaging/wakeups.py) that make the service due.
    wakeups: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        #: Seconds between two polls without a wakeup.
        self.interval_s = settings.scheduler.scheduler_idle_sleep_time
        #: Monotonic time until which the loop leaves the wakeups of this service in Redis. Only the kind QUEUE can be left.
        self.wakeups_paused_until = 0.0

    @abstractmethod
    def run(self, now: datetime) -> Result:
        """Run one pass; `now` is the database's clock at its start."""

    def skipped(self, now: datetime) -> None:
        """Called instead of `run` at the end of an interval without pending work."""

    def woken(self, kind: str, key: str) -> None:
        """Called for a wakeup in `wakeups`; `key` is the part after its colon."""

    def close(self) -> None:
        """Called when the scheduler stops."""


class Service(BaseService, ABC):
    """A service that compares times only in SQL, by the database's clock, or not at all."""

    @abstractmethod
    def run_once(self) -> Result:
        """Decide and write."""

    def run(self, now: datetime) -> Result:
        return self.run_once()


class TimedService(BaseService, ABC):
    """A service that compares times in Python, with the time that it receives."""

    @abstractmethod
    def run_once(self, now: datetime) -> Result:
        """Decide and write; `now` is the database's clock at the start of the pass."""

    def run(self, now: datetime) -> Result:
        return self.run_once(now)


def each(items: Iterable[K], work: Callable[[K], R], *, in_transaction: bool = False) -> tuple[dict[K, R], dict[K, str]]:
    """Call `work` for each item. Returns the results, and the reasons of the items that failed.

    An item that fails does not stop the others, unless the database does not answer. Items that share a transaction
    (`in_transaction`) are also stopped by an error of the database, which ends their transaction.
    """
    results: dict[K, R] = {}
    broken: dict[K, str] = {}
    for item in items:
        try:
            results[item] = work(item)
        except Exception as error:
            if isinstance(error, DBAPIError) and (in_transaction or is_away(error)):
                raise
            broken[item] = reason_of(error)
    return results, broken


def is_away(error: DBAPIError) -> bool:
    """Whether the database does not answer: the error is not about the values of a statement."""
    return isinstance(error, OperationalError) and not sqlstates.is_of_statement(error.orig)


def reason_of(error: Exception) -> str:
    """The reason to store and to log: the message of an error, with the name of its class unless it is ours."""
    if isinstance(error, DBAPIError) and isinstance(error.orig, Exception):
        error = error.orig  # without the statement
    text = str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
    # PostgreSQL cannot store NUL or half of a surrogate pair.
    return text.replace("\0", "").encode(errors="replace").decode()[:LONGEST_REASON].strip()
