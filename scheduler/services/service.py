"""A service: one duty of a scheduler, declared in one file. The loop runs every service that scheduler/loop/run.py lists.

A service file states from top to bottom: its name, the question whether work is pending, the wakeups that make it due, its
interval, what a pass asks of the loop (`run_once`), and how it decides. To add a duty, write such a file and add the service to
that list.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

AT_ONCE = 0.0
#: Seconds after which a service tries again what another scheduler held.
HELD_PAUSE_S = 0.02
#: A logging level and a message.
LogLine = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one pass of a service asks of the loop."""

    #: Names of the services that are due now.
    wake: Collection[str] = ()
    #: Runs that `promote` is to examine now.
    runs: Collection[int] = ()
    #: Seconds until the next pass; None is the interval of the service.
    again_in_s: float | None = None
    log: Sequence[LogLine] = ()


class _Declaration:
    """What the loop knows about a service before it runs."""

    name: ClassVar[str]
    #: SQL that is true whenever the service could find work now or before the next look, see store/upkeep/pending_work. Without
    #: one, the service runs at each interval.
    pending: ClassVar[str | None] = None
    #: Kinds of wakeups (scheduler/messaging/wakeups.py) that make the service due.
    wakeups: ClassVar[frozenset[str]] = frozenset()
    #: The poll, if no wakeup comes.
    interval_s: float

    def woken(self, kind: str, key: str) -> None:
        """A wakeup of one of `wakeups` came; `key` is the part after its colon."""

    def skipped(self, now: datetime) -> None:
        """The interval is over, but there is no pending work, so the service does not run."""

    def close(self) -> None:
        """The scheduler stops."""


class Service(_Declaration, ABC):
    """A service that compares no times, or compares them in SQL only, by the database's clock."""

    @abstractmethod
    def run_once(self) -> Result:
        """Decide and write."""


class TimedService(_Declaration, ABC):
    """A service that decides in Python by the time it gets."""

    @abstractmethod
    def run_once(self, now: datetime) -> Result:
        """Decide and write; `now` is the database's clock at the start of the pass."""
