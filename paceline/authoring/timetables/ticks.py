"""Endless sequences of ticks: those of cron expressions, and those at a fixed or calendar step from an anchor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.authoring import cron, zones
from paceline.exceptions import TimetableError

#: The fields of a dateutil relativedelta that are stored.
RELATIVE = ("years", "months", "days", "hours", "minutes", "seconds", "microseconds")
ABSOLUTE = ("year", "month", "day", "hour", "minute", "second", "microsecond")


class Clocks:
    """The ticks of several cron expressions in one zone; a moment that several of them match is one tick."""

    def __init__(self, expressions: Iterable[str], timezone: str) -> None:
        zone = zones.load(timezone)
        self._clocks = [cron.Clock(expression, zone) for expression in expressions]

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
