"""Branches that the calendar decides: date and time, day of the week, and whether the run is the latest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Unpack
from zoneinfo import ZoneInfo

from scheduler.authoring.arguments import Arguments, near
from scheduler.authoring.task_arguments import TaskArguments
from scheduler.operators.branch import BaseBranchOperator, Choice, dag_of

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: Runs that a person made are always wanted.
BY_HAND = "manual"


class BranchDateTimeOperator(BaseBranchOperator):
    """Follows one list of tasks while the time lies between two moments (or times of the day), else the other."""

    def __init__(
        self,
        *,
        follow_task_ids_if_true: str | Sequence[str],
        follow_task_ids_if_false: str | Sequence[str],
        target_lower: datetime | time | None,
        target_upper: datetime | time | None,
        use_task_logical_date: bool = False,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.checks()
        if target_lower is None and target_upper is None:
            raise checks.refuse("BranchDateTimeOperator needs target_lower or target_upper.")
        for name, value in (("target_lower", target_lower), ("target_upper", target_upper)):
            if value is not None and not isinstance(value, datetime | time):
                raise checks.refuse(f"{name} must be a datetime or a time, not {value!r}.")
        self.follow_task_ids_if_true = follow_task_ids_if_true
        self.follow_task_ids_if_false = follow_task_ids_if_false
        self.target_lower, self.target_upper = target_lower, target_upper
        self.use_task_logical_date = checks.boolean("use_task_logical_date", use_task_logical_date)

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        now = moment_of(context, logical=self.use_task_logical_date)
        zone = ZoneInfo(dag_of(self).timezone)
        lower, upper = (placed(target, now, zone) for target in (self.target_lower, self.target_upper))
        # Two times of the day of which the upper is the earlier one span midnight.
        if lower and upper and upper < lower and isinstance(self.target_upper, time):
            upper += timedelta(days=1)
        inside = (lower is None or lower <= now) and (upper is None or now <= upper)
        return self.follow_task_ids_if_true if inside else self.follow_task_ids_if_false


class BranchDayOfWeekOperator(BaseBranchOperator):
    """Follows one list of tasks on some days of the week, else the other."""

    def __init__(
        self,
        *,
        follow_task_ids_if_true: str | Sequence[str],
        follow_task_ids_if_false: str | Sequence[str],
        week_day: str | Iterable[str],
        use_task_logical_date: bool = False,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.checks()
        self.follow_task_ids_if_true = follow_task_ids_if_true
        self.follow_task_ids_if_false = follow_task_ids_if_false
        self.week_day = weekdays(checks, week_day)
        self.use_task_logical_date = checks.boolean("use_task_logical_date", use_task_logical_date)

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        today = moment_of(context, logical=self.use_task_logical_date).astimezone(ZoneInfo(dag_of(self).timezone))
        return self.follow_task_ids_if_true if today.weekday() in self.week_day else self.follow_task_ids_if_false


class LatestOnlyOperator(BaseBranchOperator):
    """Skips what is directly below unless the run is the latest of its schedule; a run made by hand always goes on."""

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        run = context["dag_run"]
        if run.run_type == BY_HAND or run.logical_date is None or self._is_latest(context):
            return sorted(self.downstream_task_ids)
        return None

    def _is_latest(self, context: Mapping[str, Any]) -> bool:
        dag, now = dag_of(self), context["ti"].now()
        last = context["dag_run"].logical_date
        following = dag.timetable.next_run(last=last, start=dag.start_date, end=dag.end_date, catchup=True, now=now)
        return following is None or now < following.run_after


def moment_of(context: Mapping[str, Any], *, logical: bool) -> datetime:
    """The logical date of the run, if asked for and there is one, else now."""
    found: datetime = (context.get("logical_date") if logical else None) or context["ti"].now()
    return found.astimezone(UTC)


def placed(target: datetime | time | None, now: datetime, zone: ZoneInfo) -> datetime | None:
    """A moment as it is; a time of the day as today's, on the clocks of the DAG."""
    if target is None:
        return None
    if isinstance(target, datetime):
        return target if target.utcoffset() is not None else target.replace(tzinfo=zone)
    own = target.tzinfo or zone
    today: date = now.astimezone(own).date()
    return datetime.combine(today, target.replace(tzinfo=None), own)


def weekdays(checks: Arguments, given: object) -> frozenset[int]:
    """Days of the week by name, also as an enum whose members are so called: Monday is 0."""
    days = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    found = set()
    for day in days:
        name = str(getattr(day, "name", day)).lower()
        if name not in WEEKDAYS:
            raise checks.refuse(f"week_day cannot be {day!r}{near(name, WEEKDAYS)}")
        found.add(WEEKDAYS.index(name))
    if not found:
        raise checks.refuse("week_day names no day; write week_day='monday' or a list of days.")
    return frozenset(found)
