"""Schedules without ticks: never, once, continuously, and on updates of assets, alone or together with a timetable."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from paceline.authoring.asset import Condition
from paceline.authoring.timetables.base import Asked, RunTimes, Timetable, exact

#: Two runs of one DAG never have the same logical date.
_LEAST = timedelta(microseconds=1)
#: The shortest time between the starts of two continuous runs: one that ends at once must not occupy the schedulers.
CONTINUOUS_PERIOD = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Never(Timetable):
    """schedule=None: only manual runs."""

    kind: ClassVar[str] = "never"
    summary: ClassVar[str] = "never, only by hand"


@dataclass(frozen=True, slots=True)
class Once(Timetable):
    """schedule="@once": one run at start_date, or immediately without one."""

    kind: ClassVar[str] = "once"
    summary: ClassVar[str] = "once"

    def _following(self, asked: Asked) -> RunTimes | None:
        moment = asked.start or asked.now
        return None if asked.last is not None or (asked.end is not None and moment > asked.end) else exact(moment)


@dataclass(frozen=True, slots=True)
class Continuous(Timetable):
    """schedule="@continuous": a run as soon as the previous one has ended, and CONTINUOUS_PERIOD after its start at the earliest.

    Its data interval starts where that one ended.
    """

    kind: ClassVar[str] = "continuous"
    summary: ClassVar[str] = "continuous"
    is_continuous: ClassVar[bool] = True

    def _following(self, asked: Asked) -> RunTimes | None:
        begin = asked.start or asked.now
        earliest = begin
        if asked.last is not None:
            begin = max(begin, asked.covered or asked.last, asked.last + _LEAST)
            earliest = (asked.covered or asked.last) + CONTINUOUS_PERIOD
        begin = begin.astimezone(UTC)
        until = max(begin, asked.now.astimezone(UTC), earliest.astimezone(UTC))
        return None if asked.end is not None and until > asked.end else RunTimes(begin, begin, until, until)


@dataclass(frozen=True, slots=True)
class WhenUpdated(Timetable):
    """schedule=[asset, ...], `a & b`, `a | b`: a run each time the assets of the condition have been updated."""

    kind: ClassVar[str] = "assets"
    assets: Condition

    def to_spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "condition": self.assets.to_spec(), "uris": self.assets.uris}

    @property
    def condition(self) -> Condition:
        return self.assets

    @property
    def summary(self) -> str:
        return f"on {self.assets.summary}"


@dataclass(frozen=True, slots=True)
class UpdatedOrTime(Timetable):
    """AssetOrTimeSchedule: the runs of a timetable, and a run each time the assets have been updated."""

    kind: ClassVar[str] = "asset_or_time"
    timetable: Timetable
    assets: Condition

    def _following(self, asked: Asked) -> RunTimes | None:
        return self.timetable._following(asked)

    def to_spec(self) -> dict[str, Any]:
        spec = {"condition": self.assets.to_spec(), "uris": self.assets.uris}
        return {"kind": self.kind, "timetable": self.timetable.to_spec(), **spec}

    @property
    def condition(self) -> Condition:
        return self.assets

    @property
    def is_periodic(self) -> bool:  # type: ignore[override]
        return self.timetable.is_periodic

    @property
    def summary(self) -> str:
        return f"{self.timetable.summary}, and on {self.assets.summary}"

    def runs_between(self, first: datetime, last: datetime, *, anchor: datetime | None = None) -> Iterator[RunTimes]:
        return self.timetable.runs_between(first, last, anchor=anchor)

    def latest(self, now: datetime, *, anchor: datetime | None = None) -> RunTimes | None:
        return self.timetable.latest(now, anchor=anchor)

    def manual_interval(self, moment: datetime) -> tuple[datetime, datetime]:
        return self.timetable.manual_interval(moment)
