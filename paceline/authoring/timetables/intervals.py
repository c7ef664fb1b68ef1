"""Schedules with data intervals without gaps: each run is due at the end of its interval."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from paceline.authoring.timetables.base import Asked, RunTimes, Timetable, of_interval
from paceline.authoring.timetables.ticks import Clocks, Step, Steps, Ticks, grid

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
