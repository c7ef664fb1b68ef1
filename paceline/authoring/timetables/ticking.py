"""Schedules with ticks: runs that are due at their ticks, and runs with data intervals, due at the end of these."""

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from paceline.authoring.timetables.base import Asked, RunTimes, Timetable, exact, of_interval
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


_LEAST = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Intervals(Timetable):
    """Data intervals from each tick to the next; the tick at the start is the logical date."""

    __slots__ = ()
    is_periodic: ClassVar[bool] = True

    @abstractmethod
    def _ticks(self, last: datetime | None, start: datetime | None, now: datetime) -> Ticks:
        """The ticks, given the last run and the start_date, as far as they are known."""

    def _following(self, asked: Asked) -> RunTimes | None:
        last, start, end, now = asked.last, asked.start, asked.end, asked.now
        ticks = self._ticks(asked.covered or last, start, now)
        floors = []
        if last is not None:
            floors.append(_next_start(ticks, last, asked.covered))
        if start is not None and (last is None or start > last):
            floors.append(ticks.from_on(start))
        if not asked.catchup or not floors:
            newest = self._newest(ticks, asked)
            if newest is not None:
                floors.append(newest)
        if not floors:
            floors.append(ticks.from_on(now))
        if None in floors:
            return None
        begin = max(tick for tick in floors if tick is not None)
        finish = self._end(ticks, begin)
        return None if finish is None or (end is not None and begin > end) else of_interval(begin, finish)

    def _end(self, ticks: Ticks, begin: datetime) -> datetime | None:
        """The end of the interval from `begin`."""
        return ticks.after(begin)

    def _newest(self, ticks: Ticks, asked: Asked) -> datetime | None:
        """The start of the interval with which a schedule without catchup continues: the last interval that has ended."""
        return _latest_complete(ticks, asked.now)

    def runs_between(self, first: datetime, last: datetime, *, anchor: datetime | None = None) -> Iterator[RunTimes]:
        ticks = self._ticks(None, anchor or first, first)
        begin = ticks.from_on(first)
        while begin is not None and begin <= last and (finish := ticks.after(begin)) is not None:
            yield of_interval(begin, finish)
            begin = finish

    def manual_interval(self, moment: datetime) -> tuple[datetime, datetime]:
        """The last interval that has ended at `moment`."""
        ticks = self._ticks(None, None, moment)
        begin = _latest_complete(ticks, moment)
        finish = begin and ticks.after(begin)
        return (begin, finish) if begin and finish else (moment, moment)


@dataclass(frozen=True, slots=True)
class CronInterval(_Intervals):
    """Data intervals from one tick of a cron expression to the next."""

    kind: ClassVar[str] = "cron_interval"
    expression: str
    timezone: str = "UTC"

    @property
    def summary(self) -> str:
        zone = "" if self.timezone == "UTC" else f" {self.timezone}"
        return f"{self.expression}{zone}, data intervals"

    def _ticks(self, last: datetime | None, start: datetime | None, now: datetime) -> Ticks:
        return Clocks((self.expression,), self.timezone)


@dataclass(frozen=True, slots=True)
class DeltaInterval(_Intervals):
    """Data intervals of a fixed length or of a number of months, counted from start_date.

    As in Airflow, intervals of a fixed length without catchup begin at a multiple of the length since 1970, and do so again after
    missed runs. A later start_date moves them.
    """

    kind: ClassVar[str] = "delta_interval"
    seconds: float = 0.0
    relative: tuple[tuple[str, int], ...] = ()

    @property
    def summary(self) -> str:
        return f"every {Step(self.seconds, self.relative)}, data intervals"

    def latest(self, now: datetime, *, anchor: datetime | None = None) -> RunTimes | None:
        if anchor is None:
            return None
        ticks = self._ticks(None, anchor, now)
        begin = _latest_complete(ticks, now)
        finish = begin and ticks.after(begin)
        return None if begin is None or finish is None or begin < anchor else of_interval(begin, finish)

    def _end(self, ticks: Ticks, begin: datetime) -> datetime | None:
        return ticks.after(begin) if self.relative else begin + timedelta(seconds=self.seconds)

    def _newest(self, ticks: Ticks, asked: Asked) -> datetime | None:
        step = Step(self.seconds, self.relative)
        newest = _latest_complete(ticks, asked.now)
        known = asked.covered or asked.last
        # The interval that follows the last run is late, not missed.
        if step.fixed is None or newest is None or (known is not None and newest <= known):
            return newest
        return _latest_complete(Steps(_EPOCH, step), asked.now)

    def _ticks(self, last: datetime | None, start: datetime | None, now: datetime) -> Ticks:
        step = Step(self.seconds, self.relative)
        anchor = now.replace(microsecond=0) if last is None and start is None else grid(step, last=last, start=start)
        return Steps(anchor, step)


def _next_start(ticks: Ticks, last: datetime, covered: datetime | None) -> datetime | None:
    """The start of the next interval: the end of the last one, or the tick before that if the schedule was edited."""
    aligned = None if covered is None else ticks.up_to(covered)
    # An edit from hourly to daily would otherwise lead back to an existing run, again and again.
    return aligned if aligned is not None and aligned > last else ticks.after(last)


def _latest_complete(ticks: Ticks, now: datetime) -> datetime | None:
    """The start of the last interval that has ended."""
    finish = ticks.up_to(now)
    return None if finish is None else ticks.up_to(finish - _LEAST)
