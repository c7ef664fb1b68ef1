"""Schedules without a rhythm: never, once, and again as soon as the run before has ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler.authoring.timetables.base import RunTimes, Timetable, exact

#: Two runs of one DAG never have the same logical date.
_LEAST = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Never(Timetable):
    """schedule=None: only by hand."""

    def next_run(
        self,
        *,
        last: datetime | None,
        start: datetime | None,
        end: datetime | None,
        catchup: bool,
        now: datetime,
        covered: datetime | None = None,
    ) -> RunTimes | None:
        return None

    def to_spec(self) -> dict[str, Any]:
        return {"kind": "never"}

    @property
    def summary(self) -> str:
        return "never, only by hand"


@dataclass(frozen=True, slots=True)
class Once(Timetable):
    """schedule="@once": at start_date, or at once without one."""

    def next_run(
        self,
        *,
        last: datetime | None,
        start: datetime | None,
        end: datetime | None,
        catchup: bool,
        now: datetime,
        covered: datetime | None = None,
    ) -> RunTimes | None:
        moment = start or now
        return None if last is not None or (end is not None and moment > end) else exact(moment)

    def to_spec(self) -> dict[str, Any]:
        return {"kind": "once"}

    @property
    def summary(self) -> str:
        return "once"


@dataclass(frozen=True, slots=True)
class Continuous(Timetable):
    """schedule="@continuous": each run as soon as the one before has ended, for the time since that one's data interval."""

    def next_run(
        self,
        *,
        last: datetime | None,
        start: datetime | None,
        end: datetime | None,
        catchup: bool,
        now: datetime,
        covered: datetime | None = None,
    ) -> RunTimes | None:
        begin = start or now
        if last is not None:
            begin = max(begin, covered or last, last + _LEAST)
        begin = begin.astimezone(UTC)
        until = max(begin, now.astimezone(UTC))
        return None if end is not None and until > end else RunTimes(begin, begin, until, until)

    def to_spec(self) -> dict[str, Any]:
        return {"kind": "continuous"}

    @property
    def is_continuous(self) -> bool:
        return True

    @property
    def summary(self) -> str:
        return "continuous"
