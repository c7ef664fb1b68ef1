"""Branches on the date and time, on the day of the week, and on whether the run is the latest."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import Enum
from typing import Any, Unpack

from paceline.authoring.arguments import Arguments, near
from paceline.authoring.task_arguments import TaskArguments
from paceline.operators.branch import BaseBranchOperator, Choice, dag_of, zone_of

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: LatestOnlyOperator never skips in a manual run.
MANUAL = "manual"


class BranchDateTimeOperator(BaseBranchOperator):
    """Runs the tasks `follow_task_ids_if_true` if the time is between `target_lower` and `target_upper`, both included.

    Otherwise it runs those in `follow_task_ids_if_false`. Both are task IDs of direct downstream tasks.

    The targets are datetimes or times of day, in the time zone of the DAG unless they have their own; None is no limit.
    An upper time of day before the lower one is that of the next day. The time is now, or the logical date of the run with
    `use_task_logical_date`.
    """

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
        checks = self.argument_checks()
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
        zone = zone_of(self)
        lower, upper = (placed(target, now, zone) for target in (self.target_lower, self.target_upper))
        # An upper time of day before the lower one means a span over midnight.
        if lower and upper and upper < lower and isinstance(self.target_upper, time):
            upper += timedelta(days=1)
        inside = (lower is None or lower <= now) and (upper is None or now <= upper)
        return self.follow_task_ids_if_true if inside else self.follow_task_ids_if_false


class BranchDayOfWeekOperator(BaseBranchOperator):
    """Runs the tasks `follow_task_ids_if_true` if today is one of the days `week_day`, else `follow_task_ids_if_false`.

    `week_day` is a name such as "monday", or a list of names. Today is in the time zone of the DAG, or is the logical date
    of the run with `use_task_logical_date`.
    """

    def __init__(
        self,
        *,
        follow_task_ids_if_true: str | Sequence[str],
        follow_task_ids_if_false: str | Sequence[str],
        week_day: str | Enum | Iterable[str | Enum],
        use_task_logical_date: bool = False,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.follow_task_ids_if_true = follow_task_ids_if_true
        self.follow_task_ids_if_false = follow_task_ids_if_false
        self.week_day = weekdays(checks, week_day)
        self.use_task_logical_date = checks.boolean("use_task_logical_date", use_task_logical_date)

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        today = moment_of(context, logical=self.use_task_logical_date).astimezone(zone_of(self))
        return self.follow_task_ids_if_true if today.weekday() in self.week_day else self.follow_task_ids_if_false


class LatestOnlyOperator(BaseBranchOperator):
    """Skips the direct downstream tasks unless the run is the latest of its schedule. It never skips in a manual run."""

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        run = context["dag_run"]
        if run.run_type == MANUAL or run.logical_date is None or self._is_latest(context):
            return sorted(self.downstream_task_ids)
        return None

    def _is_latest(self, context: Mapping[str, Any]) -> bool:
        dag, now = dag_of(self), context["ti"].now()
        last = context["dag_run"].logical_date
        following = dag.timetable.next_run(last=last, start=dag.start_date, end=dag.end_date, catchup=True, now=now)
        return following is None or now < following.run_after


def moment_of(context: Mapping[str, Any], *, logical: bool) -> datetime:
    """The logical date of the run if `logical`, or without one the time at which it was due; else now; in UTC."""
    moment: datetime = (context.get("logical_date") or context["dag_run"].run_after) if logical else context["ti"].now()
    return moment.astimezone(UTC)


def placed(target: datetime | time | None, now: datetime, zone: tzinfo) -> datetime | None:
    """A datetime unchanged; a time of day on the current date, in the time zone of the DAG unless it has its own."""
    if target is None:
        return None
    if isinstance(target, datetime):
        return target if target.utcoffset() is not None else target.replace(tzinfo=zone)
    own = target.tzinfo or zone
    today: date = now.astimezone(own).date()
    return datetime.combine(today, target.replace(tzinfo=None), own)


def weekdays(checks: Arguments, given: object) -> frozenset[int]:
    """Days of the week by name, or as members of an enum with these names, as numbers: Monday is 0."""
    days = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    numbers = set()
    for day in days:
        name = str(getattr(day, "name", day)).lower()
        if name not in WEEKDAYS:
            raise checks.refuse(f"week_day cannot be {day!r}{near(name, WEEKDAYS)}")
        numbers.add(WEEKDAYS.index(name))
    if not numbers:
        raise checks.refuse("week_day must not be empty; write week_day='monday' or a list of days.")
    return frozenset(numbers)
