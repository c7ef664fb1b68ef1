"""Cron expressions in a time zone, exact when the clocks change (daylight saving time).

An expression that names hours means wall-clock times, each once a day. A time that the clocks skip occurs right after
the change; a time that they show twice occurs the second time, as in Airflow. An expression for every hour means every
moment at which the clocks show a matching time, so it also runs through a repeated hour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import TYPE_CHECKING

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


def check(expression: str, timezone: str) -> None:
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
