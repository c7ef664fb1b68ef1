"""Schedules without ticks: never, once, and continuously."""

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import ClassVar

from scheduler.authoring.timetables.base import Asked, RunTimes, Timetable, exact

#: Two runs of one DAG never have the same logical date.
_LEAST = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Never(Timetable):
    """schedule=None: only manual runs."""

    kind: ClassVar[str] = "never"

    def _following(self, asked: Asked) -> RunTimes | None:
        return None

    @property
    def summary(self) -> str:
        return "never, only by hand"


@dataclass(frozen=True, slots=True)
class Once(Timetable):
    """schedule="@once": one run at start_date, or immediately without one."""

    kind: ClassVar[str] = "once"

    def _following(self, asked: Asked) -> RunTimes | None:
        moment = asked.start or asked.now
        return None if asked.last is not None or (asked.end is not None and moment > asked.end) else exact(moment)

    @property
    def summary(self) -> str:
        return "once"


@dataclass(frozen=True, slots=True)
class Continuous(Timetable):
    """schedule="@continuous": a run as soon as the previous one has ended; its data interval starts where that one ended."""

    kind: ClassVar[str] = "continuous"

    def _following(self, asked: Asked) -> RunTimes | None:
        begin = asked.start or asked.now
        if asked.last is not None:
            begin = max(begin, asked.covered or asked.last, asked.last + _LEAST)
        begin = begin.astimezone(UTC)
        until = max(begin, asked.now.astimezone(UTC))
        return None if asked.end is not None and until > asked.end else RunTimes(begin, begin, until, until)

    @property
    def is_continuous(self) -> bool:
        return True

    @property
    def summary(self) -> str:
        return "continuous"
