"""The base class of timetables, and the schedules without ticks: never, once, continuously, and on updates of assets."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from paceline.authoring.asset import Condition

#: Fields that the spec also has at their default.
ALWAYS = frozenset({"timezone", "restrict_to_events"})


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The times of one scheduled run, in UTC; it can be created from `run_after` on."""

    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime
    run_after: datetime


@dataclass(frozen=True, slots=True)
class Partition:
    """The partition of a run: its key, and its date in UTC if it has one."""

    key: str
    date: datetime | None


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of Timetable.next_run, which describes them."""

    last: datetime | None
    start: datetime | None
    end: datetime | None
    catchup: bool
    now: datetime
    covered: datetime | None


class Timetable(ABC):
    """A schedule. Immutable; timetables with equal specs are equal."""

    __slots__ = ()
    #: The name of its class in the spec.
    kind: ClassVar[str]
    #: Whether the times of its runs are known beforehand, so that a backfill can create them.
    is_periodic: ClassVar[bool] = False
    #: Whether each run starts as soon as the previous one has ended.
    is_continuous: ClassVar[bool] = False

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
        """The run after the one with the logical date `last` (None: the first run), due or not; None if there is none.

        It is always later than `last`, and not before `start` or after `end`. Without `catchup` it is the newest run that is due;
        earlier missed runs are left out. Without `start` the timetable chooses its first run near
        `now`. `covered` is the end of the data interval of the last run, if known: another timetable may have
        created that run.
        """
        return self._following(Asked(last, start, end, catchup, now, covered))

    def _following(self, asked: Asked) -> RunTimes | None:
        """The result of `next_run`; None for a schedule without times."""
        return None

    def to_spec(self) -> dict[str, Any]:
        """The timetable as JSON, which `from_spec` reads: its kind, and its fields without those at their default."""
        spec: dict[str, Any] = {"kind": self.kind}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            # 1.0 seconds are not True.
            if field.name in ALWAYS or value != field.default or type(value) is not type(field.default):
                spec[field.name] = _plain(value)
        return spec

    @property
    @abstractmethod
    def summary(self) -> str:
        """The schedule as text for people."""

    @property
    def condition(self) -> Condition | None:
        """The condition on updates of assets that creates a run, if there is one."""
        return None

    def partition(self, tick: datetime) -> Partition | None:
        """The partition of the scheduled run at `tick`; None if the schedule has no partitions."""
        return None

    def runs_between(self, first: datetime, last: datetime, *, anchor: datetime | None = None) -> Iterator[RunTimes]:
        """The runs with logical dates from `first` to `last`, both included, in order; none unless it is periodic.

        A timedelta counts from `anchor`, the start_date of the DAG, else from `first`.
        """
        return iter(())

    def latest(self, now: datetime, *, anchor: datetime | None = None) -> RunTimes | None:
        """The newest run that is due; None if there is none.

        `anchor` is the logical date of any run: a timedelta counts from there, and gives None without it.
        """
        if not self.is_periodic:
            return None
        run = self.next_run(last=None, start=anchor, end=None, catchup=False, now=now)
        return run if run is not None and run.run_after <= now else None

    def manual_interval(self, moment: datetime) -> tuple[datetime, datetime]:
        """The data interval of a manual run for `moment`."""
        return moment, moment


def _plain(value: object) -> object:
    """A field as JSON: the fields of a step are pairs."""
    if isinstance(value, tuple):
        return dict(value) if value and isinstance(value[0], tuple) else list(value)
    return value


def exact(moment: datetime) -> RunTimes:
    """A run at `moment`, with an empty data interval."""
    moment = moment.astimezone(UTC)
    return RunTimes(moment, moment, moment, moment)


def of_interval(start: datetime, end: datetime) -> RunTimes:
    """A run of a data interval, due at its end."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    return RunTimes(start, start, end, end)


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
