"""Windows, which list the keys of one period or category, and the policies that set how many of them a run waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

from paceline.authoring.source import fault
from paceline.exceptions import TimetableError


class Direction(StrEnum):
    """Whether a window starts at its key (forward) or ends there (backward)."""

    BACKWARD = "backward"
    FORWARD = "forward"


@dataclass(frozen=True)
class Window:
    """The members of one period. `direction` sets whether the period starts at the key (the default) or ends with it."""

    # As in Airflow: Window.Direction.BACKWARD.
    Direction: ClassVar = Direction
    #: The type that `to_upstream` takes and returns.
    expected_decoded_type: ClassVar[type] = datetime
    #: The largest number of members.
    most: ClassVar[int]
    #: The time from one member to the next, unless they are months.
    step: ClassVar[timedelta]

    direction: str = field(default=Direction.FORWARD, kw_only=True)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "direction", Direction(self.direction))
        except ValueError:
            raise refusal(f"direction of {type(self).__name__} must be 'forward' or 'backward', not {self.direction!r}.") from None

    def to_upstream(self, decoded_downstream: Any) -> Iterable[Any]:
        """The members of the period of this key."""
        first = self._later(decoded_downstream, 1 - self.most) if self.direction is Direction.BACKWARD else decoded_downstream
        return [self._later(first, number) for number in range(self.most)]

    def _later(self, member: datetime, number: int) -> datetime:
        """The member that comes `number` members later."""
        return member + number * self.step


class HourWindow(Window):
    """The 60 minutes of an hour."""

    most, step = 60, timedelta(minutes=1)


class DayWindow(Window):
    """24 hours. They are counted on the clock, so use UTC where a day can have 23 or 25."""

    most, step = 24, timedelta(hours=1)


class WeekWindow(Window):
    """Seven days."""

    most, step = 7, timedelta(days=1)


class MonthWindow(Window):
    """The days of a month. Backward: those after the first of the month before, up to the first of this one."""

    most = 31

    def to_upstream(self, decoded_downstream: datetime) -> list[datetime]:
        start = _day_one(self, decoded_downstream)
        if self.direction is Direction.BACKWARD:
            before = _months_later(start, -1)
            return [before + timedelta(days=number + 1) for number in range((start - before).days)]
        return [start + timedelta(days=number) for number in range((_months_later(start, 1) - start).days)]


class _Months(Window):
    """A fixed number of months."""

    def _later(self, member: datetime, number: int) -> datetime:
        return _months_later(_day_one(self, member), number)


class QuarterWindow(_Months):
    """Three months."""

    most = 3


class YearWindow(_Months):
    """Twelve months."""

    most = 12


@dataclass(frozen=True, init=False)
class SegmentWindow(Window):
    """A fixed set of keys that are no dates, such as regions: `segments` is a list such as ["us", "eu"]."""

    expected_decoded_type = str

    segments: tuple[str, ...]

    def __init__(self, segments: Iterable[str]) -> None:
        given = [segments] if isinstance(segments, str) else list(segments)
        if isinstance(segments, str) or not given or not all(isinstance(segment, str) and segment for segment in given):
            raise refusal(f"SegmentWindow needs a list of one or more texts that are not empty, not {segments!r}.")
        object.__setattr__(self, "segments", tuple(sorted(set(given))))
        object.__setattr__(self, "direction", Direction.FORWARD)

    @property
    def most(self) -> int:  # type: ignore[override]
        """The number of keys."""
        return len(self.segments)

    def to_upstream(self, decoded_downstream: object) -> tuple[str, ...]:
        return self.segments


class WaitPolicy:
    """How many of the expected keys a run waits for."""

    def is_satisfied(self, matched: int, expected: int) -> bool:
        """Whether `matched` of `expected` keys are enough."""
        raise NotImplementedError


@dataclass(frozen=True)
class WaitForAll(WaitPolicy):
    """Wait for all keys of the window."""

    def is_satisfied(self, matched: int, expected: int) -> bool:
        return matched == expected


@dataclass(frozen=True)
class MinimumCount(WaitPolicy):
    """Wait for `n` keys of the window, or with a negative `n` for all but `-n`."""

    n: int

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n == 0:
            raise refusal(
                f"MinimumCount needs a whole number other than 0, not {self.n!r}; write WaitForAll() to wait for all keys."
            )

    def is_satisfied(self, matched: int, expected: int) -> bool:
        return matched >= (self.n if self.n > 0 else max(0, expected + self.n))


def matched(expected: Collection[str], arrived: Collection[str]) -> int:
    return len(set(expected) & set(arrived))


def _day_one(window: Window, moment: datetime) -> datetime:
    if moment.day != 1:
        raise ValueError(f"{type(window).__name__} needs a mapper whose periods start with a month, not on {moment.isoformat()}.")
    return moment


def _months_later(moment: datetime, months: int) -> datetime:
    total = moment.month - 1 + months
    return moment.replace(year=moment.year + total // 12, month=total % 12 + 1)


def refusal(message: str) -> Exception:
    """A TimetableError with the place in the DAG file."""
    return fault(message, kind=TimetableError)
