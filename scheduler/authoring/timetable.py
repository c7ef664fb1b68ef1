"""When a DAG runs: never, once, by cron or every so often. Pure: the time comes in as an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from scheduler.authoring import cron, zones
from scheduler.authoring.arguments import Arguments, near
from scheduler.exceptions import TimetableError

ONCE = "@once"
PRESETS: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The times of one scheduled run, in UTC; it may be made once `run_after` has come."""

    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime
    run_after: datetime


class Timetable(Protocol):
    """A schedule. Frozen, and equal if its spec is."""

    def next_run(
        self, *, last: datetime | None, start: datetime | None, end: datetime | None, catchup: bool, now: datetime
    ) -> RunTimes | None:
        """The run after that of logical date `last` (None: the first), which may lie in the future; None if none follows.

        Without `catchup` it is the newest one that is due, however many were missed before it. Always later than
        `last`, never before `start` nor after `end`. Without `start` the schedule begins with the newest due tick.
        """

    def to_spec(self) -> dict[str, Any]:
        """JSON that `from_spec` reads."""

    @property
    def summary(self) -> str:
        """The schedule as people read it."""


@dataclass(frozen=True, slots=True)
class Never:
    """schedule=None: only by hand."""

    def next_run(
        self, *, last: datetime | None, start: datetime | None, end: datetime | None, catchup: bool, now: datetime
    ) -> RunTimes | None:
        return None

    def to_spec(self) -> dict[str, Any]:
        return {"kind": "never"}

    @property
    def summary(self) -> str:
        return "never, only by hand"


@dataclass(frozen=True, slots=True)
class Once:
    """schedule="@once": at start_date, or at once without one."""

    def next_run(
        self, *, last: datetime | None, start: datetime | None, end: datetime | None, catchup: bool, now: datetime
    ) -> RunTimes | None:
        return _within(start or now, end) if last is None else None

    def to_spec(self) -> dict[str, Any]:
        return {"kind": "once"}

    @property
    def summary(self) -> str:
        return "once"


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression on the clocks of a time zone."""

    expression: str
    timezone: str = "UTC"

    def next_run(
        self, *, last: datetime | None, start: datetime | None, end: datetime | None, catchup: bool, now: datetime
    ) -> RunTimes | None:
        clock = cron.Clock(self.expression, zones.load(self.timezone))
        if last is None and start is None:
            return _within(clock.up_to(now), end)
        floors = [clock.after(last)] if last is not None else []
        if start is not None:
            floors.append(clock.from_on(start))
        first = None if None in floors else max(tick for tick in floors if tick is not None)
        if not catchup and first is not None and first <= now:
            first = clock.up_to(now)
        return _within(first, end)

    def to_spec(self) -> dict[str, Any]:
        return {"kind": "cron", "expression": self.expression, "timezone": self.timezone}

    @property
    def summary(self) -> str:
        zone = "" if self.timezone == "UTC" else f" {self.timezone}"
        return f"{self.expression}{zone}"


@dataclass(frozen=True, slots=True)
class Delta:
    """Every so many seconds of elapsed time, counted from start_date."""

    seconds: float

    def next_run(
        self, *, last: datetime | None, start: datetime | None, end: datetime | None, catchup: bool, now: datetime
    ) -> RunTimes | None:
        step = timedelta(seconds=self.seconds)
        if start is not None and (last is None or start > last):
            first = start
        elif last is not None:
            first = last + step
        else:
            first = now.replace(microsecond=0)
        missed = (now - first) // step
        return _within(first if catchup or missed < 0 else first + missed * step, end)

    def to_spec(self) -> dict[str, Any]:
        return {"kind": "delta", "seconds": self.seconds}

    @property
    def summary(self) -> str:
        return f"every {timedelta(seconds=self.seconds)}"


def from_schedule(schedule: object, *, timezone: str, checks: Arguments) -> Timetable:
    """The timetable of a DAG's `schedule`; TimetableError with the DAG's line if it cannot be understood."""
    try:
        return _understood(schedule, timezone)
    except TimetableError as error:
        refused = TimetableError(f"{checks.owner}: {error}")
        refused.file, refused.line = checks.at.file, checks.at.line
        raise refused from None


def from_spec(spec: Mapping[str, Any]) -> Timetable:
    """The timetable that `to_spec` described."""
    kind, arguments = spec["kind"], {key: value for key, value in spec.items() if key != "kind"}
    kinds: dict[str, type[Never | Once | Cron | Delta]] = {"never": Never, "once": Once, "cron": Cron, "delta": Delta}
    return kinds[kind](**arguments)


def _understood(schedule: object, timezone: str) -> Timetable:
    if schedule is None:
        return Never()
    if isinstance(schedule, timedelta):
        if schedule <= timedelta(0):
            raise TimetableError(f"schedule must be longer than zero, not {schedule!r}.")
        return Delta(schedule.total_seconds())
    if not isinstance(schedule, str):
        raise TimetableError(
            f"schedule cannot be {schedule!r} ({type(schedule).__name__}); write a cron expression, a preset such as "
            "'@daily', a timedelta or None."
        )
    text = " ".join(schedule.split())
    if text == ONCE:
        return Once()
    if text.startswith("@") and text not in PRESETS:
        raise TimetableError(f"schedule {schedule!r} is no preset{near(text, [*PRESETS, ONCE])}")
    expression = PRESETS.get(text, text)
    cron.check(expression, timezone)
    return Cron(expression, timezone)


def _within(moment: datetime | None, end: datetime | None) -> RunTimes | None:
    if moment is None or (end is not None and moment > end):
        return None
    moment = moment.astimezone(UTC)
    return RunTimes(moment, moment, moment, moment)
