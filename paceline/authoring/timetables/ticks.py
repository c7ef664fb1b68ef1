"""Endless sequences of ticks: those of cron expressions, and those at a fixed or calendar step from an anchor.

Cron expressions are in a time zone, and exact when the clocks change (daylight saving time). An expression that names hours means
wall-clock times, each once a day. A time that the clocks skip occurs right after the change; a time that they show twice occurs the
second time, as in Airflow. An expression for every hour means every moment at which the clocks show a matching time, so it also
runs through a repeated hour.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import TYPE_CHECKING, Any

from paceline.authoring import zones
from paceline.exceptions import TimetableError

if TYPE_CHECKING:
    from croniter import croniter

_RANDOM = re.compile(r"(?i)(?<![a-z])[rh](?![a-z])")
#: Ticks lie on whole seconds.
_SECOND = timedelta(seconds=1)
#: No zone has moved its clocks further than this (Samoa skipped a day).
_FURTHEST = timedelta(hours=25)
_BACK = timedelta(days=2)


def check_cron(expression: str, timezone: str) -> None:
    """TimetableError unless `expression` has 5 fields (or 6: seconds last) and names times that occur."""
    from croniter import CroniterError

    fields = expression.split()
    if len(fields) not in {5, 6}:
        raise TimetableError(f"schedule {expression!r} has {len(fields)} fields; cron has 5: minute, hour, day, month, weekday.")
    if _RANDOM.search(expression):
        raise TimetableError(f"schedule {expression!r} uses H or R, which would differ at each parsing; write numbers.")
    try:
        first_tick = Clock(expression, zones.load(timezone)).after(datetime(2000, 1, 1, tzinfo=UTC))
    except (CroniterError, ValueError, KeyError) as error:
        raise TimetableError(f"schedule {expression!r} is not a cron expression: {error}.") from None
    if first_tick is None:
        raise TimetableError(f"schedule {expression!r} names a day that never occurs; correct its day or month.")


class Clock:
    """The ticks of one expression in one zone. Every moment has a time zone, and every result is in UTC."""

    def __init__(self, expression: str, zone: tzinfo) -> None:
        self._expression = expression
        self._zone = zone
        self._every_hour = _covers_every_hour(expression)
        self._croniter: croniter | None = None

    def after(self, moment: datetime) -> datetime | None:
        """The first tick later than `moment`; None if there is none."""
        moment = moment.astimezone(UTC).replace(microsecond=0)
        return self._shown_after(moment) if self._every_hour else self._named_after(moment)

    def from_on(self, moment: datetime) -> datetime | None:
        """The first tick at or after `moment`."""
        return self.after(moment if moment.microsecond else moment - _SECOND)

    def up_to(self, moment: datetime) -> datetime | None:
        """The last tick at or before `moment`; None if there is none."""
        moment = moment.astimezone(UTC).replace(microsecond=0)
        wall = self._before(self._wall(moment) + _SECOND)
        if wall is None:
            return None
        tick = self._at(wall)
        if tick <= moment and self._steady(tick - _FURTHEST, moment):
            return tick
        # The clocks changed near this time: walk forward from a point from which no later tick can be missed.
        jump = max(self._jump(tick - _BACK, moment), self._jump(moment, tick))
        start = self._before(wall - jump) or wall
        newest, following = None, self.from_on(self._at(start) - jump)
        while following is not None and following <= moment:
            newest, following = following, self.after(following)
        return newest

    def _shown_after(self, moment: datetime) -> datetime | None:
        wall = next(self._walls_after(self._wall(moment)), None)
        if wall is None:
            return None
        offset = self._offset(moment)
        tick = wall.replace(tzinfo=UTC) - offset
        if self._offset(tick) == offset:
            return tick
        changed = self._change_between(moment, tick)
        wall = next(self._walls_after(self._wall(changed) - _SECOND), None)
        return None if wall is None else wall.replace(tzinfo=UTC) - self._offset(changed)

    def _named_after(self, moment: datetime) -> datetime | None:
        here = self._wall(moment)
        wall = next(self._walls_after(here), None)
        if wall is None:
            return None
        tick = self._at(wall)
        if self._steady(moment - _FURTHEST, moment + _FURTHEST) and self._wall(tick) == wall:
            return tick
        # Skipped and repeated times can occur after later wall-clock times: take the earliest moment of all candidates nearby.
        jump = max(self._jump(moment - _BACK, moment + _BACK), self._jump(tick - _BACK, tick + _BACK))
        best: datetime | None = None
        for candidate in self._walls_after(here - jump):
            tick = self._at(candidate)
            if tick > moment and (best is None or tick < best):
                best = tick
            if best is not None and candidate > self._wall(best) + jump:
                break
        return best

    def _change_between(self, before: datetime, after: datetime) -> datetime:
        """The first second of the new offset, given that the offsets at the two moments differ."""
        offset = self._offset(before)
        while after - before > timedelta(seconds=1):
            middle = before + (after - before) / 2
            before, after = (middle, after) if self._offset(middle) == offset else (before, middle)
        return after.replace(microsecond=0)

    def _steady(self, before: datetime, after: datetime) -> bool:
        return self._offset(before) == self._offset(after)

    def _jump(self, before: datetime, after: datetime) -> timedelta:
        return abs(self._offset(before) - self._offset(after))

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta(0)

    def _wall(self, moment: datetime) -> datetime:
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _at(self, wall: datetime) -> datetime:
        """The last moment at which the clocks show `wall`; a skipped time uses the offset before the change."""
        offsets = [wall.replace(tzinfo=self._zone, fold=fold).utcoffset() or timedelta(0) for fold in (0, 1)]
        # The smaller offset is the later one of a repeated time, and the earlier one of a skipped time.
        return wall.replace(tzinfo=UTC) - min(offsets)

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        from croniter import CroniterBadDateError

        ticks = self._from(wall)
        try:
            while True:
                yield ticks.get_next(datetime)
        except (CroniterBadDateError, OverflowError):
            return

    def _before(self, wall: datetime) -> datetime | None:
        from croniter import CroniterBadDateError

        try:
            return self._from(wall).get_prev(datetime)
        except (CroniterBadDateError, OverflowError):
            return None

    def _from(self, wall: datetime) -> croniter:
        """The croniter of this clock, set to `wall`. All share one, since parsing takes longest. Only its last user may read on."""
        if self._croniter is None:
            self._croniter = _croniter(self._expression, wall)
        else:
            self._croniter.set_current(wall, force=True)
        return self._croniter


def _croniter(expression: str, start: datetime) -> croniter:
    from croniter import croniter

    return croniter(expression, start)


@cache
def _covers_every_hour(expression: str) -> bool:
    hours = _croniter(expression, datetime(2000, 1, 1)).expanded[1]  # noqa: DTZ001 - a wall-clock time
    return hours == ["*"] or len(set(hours)) == 24


#: The fields of a dateutil relativedelta that are stored.
RELATIVE = ("years", "months", "days", "hours", "minutes", "seconds", "microseconds")
ABSOLUTE = ("year", "month", "day", "hour", "minute", "second", "microsecond")


class Clocks:
    """The ticks of several cron expressions in one zone; a moment that several of them match is one tick."""

    def __init__(self, expressions: Iterable[str], timezone: str) -> None:
        zone = zones.load(timezone)
        self._clocks = [Clock(expression, zone) for expression in expressions]

    def after(self, moment: datetime) -> datetime | None:
        """The first tick after `moment`."""
        return min(filter(None, (clock.after(moment) for clock in self._clocks)), default=None)

    def from_on(self, moment: datetime) -> datetime | None:
        """The first tick at or after `moment`."""
        return min(filter(None, (clock.from_on(moment) for clock in self._clocks)), default=None)

    def up_to(self, moment: datetime) -> datetime | None:
        """The last tick at or before `moment`."""
        return max(filter(None, (clock.up_to(moment) for clock in self._clocks)), default=None)


class Steps:
    """`anchor` and every whole number of steps from it, in both directions."""

    def __init__(self, anchor: datetime, step: Step) -> None:
        self._anchor = anchor.astimezone(UTC)
        self._step = step

    def after(self, moment: datetime) -> datetime | None:
        return self._step.tick(self._anchor, self._number(moment) + 1)

    def from_on(self, moment: datetime) -> datetime | None:
        number = self._number(moment)
        here = self._step.tick(self._anchor, number)
        return here if here == moment else self._step.tick(self._anchor, number + 1)

    def up_to(self, moment: datetime) -> datetime | None:
        return self._step.tick(self._anchor, self._number(moment))

    def _number(self, moment: datetime) -> int:
        """The number of the last tick at or before `moment`."""
        if self._step.fixed is not None:
            return (moment - self._anchor) // self._step.fixed
        return _last_true(lambda number: self._reached(number, moment))

    def _reached(self, number: int, moment: datetime) -> bool:
        tick = self._step.tick(self._anchor, number)
        return number < 0 if tick is None else tick <= moment


#: A sequence of moments in UTC.
Ticks = Clocks | Steps


class Step:
    """A timedelta, or a dateutil relativedelta as the values of its fields."""

    def __init__(self, seconds: float, relative: Iterable[tuple[str, int]]) -> None:
        self.fixed = None if relative else timedelta(seconds=seconds)
        self._relative = dict(relative)

    def tick(self, anchor: datetime, number: int) -> datetime | None:
        """The tick `number` steps from `anchor`; None outside the years 1 to 9999."""
        try:
            if self.fixed is not None:
                return anchor + number * self.fixed
            from dateutil.relativedelta import relativedelta  # type: ignore[import-untyped]

            fields: dict[str, Any] = {name: value * number if name in RELATIVE else value for name, value in self._relative.items()}
            return anchor + relativedelta(**fields) if number else anchor
        except (OverflowError, ValueError):
            return None

    def __str__(self) -> str:
        fields = self._relative if self.fixed is None else _units(self.fixed)
        texts = [f"{value} {name.removesuffix('s') if value == 1 else name}" for name, value in sorted(fields.items(), key=_order)]
        return texts[0].removeprefix("1 ") if len(texts) == 1 else " ".join(texts)


def _order(field: tuple[str, float]) -> int:
    return RELATIVE.index(field[0]) if field[0] in RELATIVE else len(RELATIVE)


def _units(step: timedelta) -> dict[str, float]:
    """Days, hours, minutes and seconds, without those that are zero."""
    minutes, seconds = divmod(step.seconds, 60)
    exact = seconds + step.microseconds / 1e6 if step.microseconds else seconds
    units = {"days": step.days, "hours": minutes // 60, "minutes": minutes % 60, "seconds": exact}
    return {name: value for name, value in units.items() if value}


def grid(step: Step, *, last: datetime | None, start: datetime | None) -> datetime:
    """The anchor of the ticks after `last` and from `start` on; at least one of the two is given.

    This is `start` if `last` is one of its ticks, so that steps of months keep their day, such as the 31st. Otherwise `last`, so
    that the next tick is a whole step away even if `start` was edited or changes with each parsing.
    """
    if start is None or (last is not None and last >= start and Steps(start, step).from_on(last) != last):
        assert last is not None
        return last
    return start


def fields_of(delta: object) -> dict[str, Any]:
    """The arguments of a timetable, `seconds` or `relative`, for a timedelta or relativedelta; TimetableError if not valid."""
    if isinstance(delta, timedelta):
        if delta <= timedelta(0):
            raise TimetableError(f"schedule must be longer than zero, not {delta!r}.")
        return {"seconds": delta.total_seconds()}
    if type(delta).__name__ != "relativedelta":
        raise TimetableError(f"the step must be a timedelta or a relativedelta, not {delta!r} ({type(delta).__name__}).")
    if getattr(delta, "weekday", None) is not None or getattr(delta, "leapdays", None):
        raise TimetableError(f"schedule {delta!r} names a weekday or leap days; write a cron expression instead.")
    fields = {name: getattr(delta, name) for name in RELATIVE if getattr(delta, name)}
    fields |= {name: getattr(delta, name) for name in ABSOLUTE if getattr(delta, name) is not None}
    if not fields.keys() & {"years", "months", *ABSOLUTE}:
        return fields_of(timedelta(**fields))
    relative = tuple(sorted(fields.items()))
    step = Step(0, relative)
    for anchor in (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 31, tzinfo=UTC), datetime(2023, 12, 31, 23, tzinfo=UTC)):
        ticks = [step.tick(anchor, number) for number in range(1, 4)]
        if None in ticks or any(a is None or b is None or a >= b for a, b in zip([anchor, *ticks], ticks, strict=False)):
            raise TimetableError(f"every step of a schedule must lead to a later time, and those of {delta!r} do not.")
    return {"relative": relative}


def _last_true(holds: Callable[[int], bool]) -> int:
    """The largest number for which `holds` is true; it is true for all smaller and false for all larger numbers."""
    low, high = (0, 1) if holds(0) else (-1, 0)
    width = 1
    while holds(high):
        low, high, width = high, high + width, width * 2
    while not holds(low):
        low, high, width = low - width, low, width * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
