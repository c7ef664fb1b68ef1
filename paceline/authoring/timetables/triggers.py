"""Schedules whose runs are due at their ticks: cron expressions, a step, and a list of events."""

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from paceline.authoring.timetables.base import Asked, RunTimes, Timetable, exact
from paceline.authoring.timetables.ticks import Clocks, Step, Steps, Ticks, grid

#: With run_immediately None or False, a DAG without start_date begins with the last tick if that tick is recent: not older than
#: this time, or than this fraction of the time between ticks if that is longer.
_NEAR_SHARE, _NEAR = 10, timedelta(minutes=5)


class _Trigger(Timetable):
    """Runs are due at ticks; the data interval is the time span of `interval_s` seconds before the tick, empty by default."""

    __slots__ = ()
    is_periodic: ClassVar[bool] = True
    interval_s: float

    @property
    def interval(self) -> timedelta:
        return timedelta(seconds=self.interval_s)

    @abstractmethod
    def _ticks(self, last: datetime | None, start: datetime | None, now: datetime) -> Ticks:
        """The ticks, given the tick of the last run and the start_date, as far as they are known."""

    def runs_between(self, first: datetime, last: datetime, *, anchor: datetime | None = None) -> Iterator[RunTimes]:
        ticks = self._ticks(None, anchor or first + self.interval, first)
        tick = ticks.from_on(first + self.interval)
        while (run := self._run(tick, last + self.interval)) is not None:
            yield run
            tick = ticks.after(run.run_after)

    def manual_interval(self, moment: datetime) -> tuple[datetime, datetime]:
        return moment - self.interval, moment

    def _tick_of(self, asked: Asked) -> datetime | None:
        """The tick of the last run, moved if needed so that the next run has a later logical date."""
        return None if asked.last is None else max(asked.covered or asked.last, asked.last + self.interval)

    def _next(self, ticks: Ticks, last: datetime | None, asked: Asked) -> RunTimes | None:
        """The run after the tick `last`."""
        start, now = asked.start, asked.now
        floors = [ticks.after(last)] if last is not None else []
        if start is not None and (last is None or start > last):
            floors.append(ticks.from_on(start))
        first = None if None in floors else max(tick for tick in floors if tick is not None)
        if not asked.catchup and first is not None and first <= now:
            first = ticks.up_to(now)
        return self._run(first, asked.end)

    def _run(self, tick: datetime | None, end: datetime | None) -> RunTimes | None:
        if tick is None or (end is not None and tick > end):
            return None
        tick = tick.astimezone(UTC)
        return RunTimes(tick - self.interval, tick - self.interval, tick, tick)


@dataclass(frozen=True, slots=True)
class Cron(_Trigger):
    """One or more cron expressions in a time zone.

    `run_immediately` chooses the first run of a DAG without start_date. True: the last tick. A number of seconds: the last tick if
    it is not older. None or False: the last tick if it is about now. Otherwise the first run is the next tick. Each expression
    chooses for itself, as in Airflow: the run is the newest choice that is due (with catchup the first one), else the next one.
    """

    kind: ClassVar[str] = "cron"
    expression: str
    timezone: str = "UTC"
    more: tuple[str, ...] = ()
    interval_s: float = 0.0
    run_immediately: bool | float | None = False

    def _following(self, asked: Asked) -> RunTimes | None:
        if asked.last is None and asked.start is None:
            each = (Clocks((expression,), self.timezone) for expression in (self.expression, *self.more))
            first = [tick for ticks in each if (tick := self._first(ticks, asked.now)) is not None]
            due = [] if asked.catchup else [tick for tick in first if tick <= asked.now]
            return self._run(max(due, default=min(first, default=None)), asked.end)
        return self._next(self._ticks(asked.last, asked.start, asked.now), self._tick_of(asked), asked)

    @property
    def summary(self) -> str:
        zone = "" if self.timezone == "UTC" else f" {self.timezone}"
        return f"{', '.join((self.expression, *self.more))}{zone}"

    def latest(self, now: datetime, *, anchor: datetime | None = None) -> RunTimes | None:
        return self._run(self._ticks(None, None, now).up_to(now), None)

    def _ticks(self, last: datetime | None, start: datetime | None, now: datetime) -> Ticks:
        return Clocks((self.expression, *self.more), self.timezone)

    def _first(self, ticks: Ticks, now: datetime) -> datetime | None:
        past = ticks.up_to(now)
        if self.run_immediately is True or past is None:
            return past
        following = ticks.from_on(now)
        if self.run_immediately is None or self.run_immediately is False:
            near = max((following - past) / _NEAR_SHARE if following else _NEAR, _NEAR)
        else:
            near = timedelta(seconds=self.run_immediately)
        return past if now - past <= near else following


@dataclass(frozen=True, slots=True)
class Delta(_Trigger):
    """A run every `seconds` of elapsed time, or at each step of a relativedelta, counted from start_date.

    As in Airflow, without catchup the first run is now or at a later start_date, and after missed runs it continues from now.
    """

    kind: ClassVar[str] = "delta"
    seconds: float = 0.0
    relative: tuple[tuple[str, int], ...] = ()
    interval_s: float = 0.0

    def _following(self, asked: Asked) -> RunTimes | None:
        last, start, now = self._tick_of(asked), asked.start, asked.now.replace(microsecond=0)
        if asked.catchup and (last or start):
            return self._next(self._ticks(last, start, now), last, asked)
        if last is None:
            return self._run(now if start is None else max(start, now), asked.end)
        tick = self._ticks(last, start if start is not None and start <= last else None, now).after(last)
        if tick is not None and start is not None:
            tick = max(tick, start)
        if tick is not None:
            # A run that is only late keeps its date.
            missed = self._ticks(tick, None, now).after(tick)
            tick = now if missed is not None and missed <= now else tick
        return self._run(tick, asked.end)

    @property
    def summary(self) -> str:
        return f"every {Step(self.seconds, self.relative)}"

    def latest(self, now: datetime, *, anchor: datetime | None = None) -> RunTimes | None:
        if anchor is None or anchor > now:
            return None
        return self._run(self._ticks(None, anchor + self.interval, now).up_to(now), None)

    def _ticks(self, last: datetime | None, start: datetime | None, now: datetime) -> Ticks:
        step = Step(self.seconds, self.relative)
        return Steps(grid(step, last=last, start=start), step)


@dataclass(frozen=True, slots=True)
class Events(Timetable):
    """A run at each of these moments, in ascending order. Without catchup, a new DAG begins with the next one."""

    kind: ClassVar[str] = "events"
    is_periodic: ClassVar[bool] = True
    event_dates: tuple[str, ...]
    restrict_to_events: bool = False

    def _following(self, asked: Asked) -> RunTimes | None:
        events, last, now = self._events(), asked.last, asked.now
        first = 0 if last is None else bisect_right(events, max(last, asked.covered or last))
        if asked.start is not None:
            first = max(first, bisect_left(events, asked.start))
        if not asked.catchup:
            first = max(first, bisect_left(events, now) if last is None else bisect_right(events, now) - 1)
        if first >= len(events) or (asked.end is not None and events[first] > asked.end):
            return None
        return exact(events[first])

    @property
    def summary(self) -> str:
        return f"{len(self.event_dates)} events from {self.event_dates[0]} to {self.event_dates[-1]}"

    def runs_between(self, first: datetime, last: datetime, *, anchor: datetime | None = None) -> Iterator[RunTimes]:
        return (exact(event) for event in self._events() if first <= event <= last)

    def latest(self, now: datetime, *, anchor: datetime | None = None) -> RunTimes | None:
        events = self._events()
        place = bisect_right(events, now)
        return exact(events[place - 1]) if place else None

    def manual_interval(self, moment: datetime) -> tuple[datetime, datetime]:
        if self.restrict_to_events:
            events = self._events()
            moment = events[max(bisect_right(events, moment) - 1, 0)]
        return moment, moment

    def _events(self) -> list[datetime]:
        return [datetime.fromisoformat(text) for text in self.event_dates]
