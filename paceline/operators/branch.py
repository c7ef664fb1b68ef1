"""Branches: tasks that choose which of their downstream tasks run. The others are skipped."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Unpack

from paceline.authoring import zones
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.arguments import Arguments, near
from paceline.authoring.dag import DAG
from paceline.authoring.operator import Operator
from paceline.authoring.source import fault
from paceline.authoring.task_arguments import TaskArguments
from paceline.authoring.xcom import RETURN_KEY
from paceline.exceptions import DownstreamTasksSkipped, FailTask, SkipTask
from paceline.operators.python import PythonArguments, PythonOperator

if TYPE_CHECKING:
    from paceline.authoring.task_instance import Context


#: A task ID, the ID of a task group (for its first tasks), several of these, or None for no task.
Choice = str | Iterable[str] | None


class BaseBranchOperator(Operator):
    """Base class of branches. Subclasses implement `choose_branch`.

    Direct downstream tasks are skipped if it names neither them nor one of their upstream tasks. The choice is the result of the
    task.
    """

    branches: ClassVar[bool] = True

    def choose_branch(self, context: "Context") -> Choice:
        """The tasks to run: an ID of a task or task group, a list of them, or None."""
        raise NotImplementedError(f"{type(self).__name__} has no choose_branch().")

    def execute(self, context: "Context") -> object:
        return follow(self, self.choose_branch(context), context)


class SkipMixin:
    """A base class in addition to Operator, for operators that skip downstream tasks themselves."""

    branches: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Also for a class that names Operator first, which has another default.
        cls.branches = True

    def skip(self, ti: Any, tasks: Iterable[Any]) -> NoReturn:
        """End this try with success, and skip these downstream tasks (operators, or their IDs)."""
        names = [getattr(task, "task_id", task) for task in tasks]
        if names:
            record({"ti": ti}, "skipped", names)
        raise DownstreamTasksSkipped(tasks=names)

    def skip_all_except(self, ti: Any, branch_task_ids: Choice) -> None:
        """Skip the direct downstream tasks that are neither chosen nor downstream of a chosen task."""
        assert isinstance(self, AbstractOperator), "a base class of operators"
        follow(self, branch_task_ids, {"ti": ti})


class BranchMixIn(SkipMixin):
    """A base class in addition to Operator, for operators that choose which downstream tasks run."""

    def do_branch(self, context: Mapping[str, Any], branches_to_execute: Choice) -> Choice:
        """Skip the direct downstream tasks that are neither chosen nor downstream of a chosen task. Returns the choice."""
        self.skip_all_except(context["ti"], branches_to_execute)
        return branches_to_execute


class BranchPythonOperator(PythonOperator, BaseBranchOperator):
    """A branch whose function returns the ID of the task or task group to run, a list of them, or None for no task."""

    def choose_branch(self, context: "Context") -> Choice:
        chosen: Choice = self.call(context)
        return chosen

    def execute(self, context: "Context") -> object:
        return BaseBranchOperator.execute(self, context)


class ShortCircuitOperator(PythonOperator):
    """Skips all transitive downstream tasks if the function returns a false value.

    With `ignore_downstream_trigger_rules=False`, only the direct downstream tasks are skipped, and the trigger rules of
    the others apply. Teardowns are never skipped. The return value is the result of the task, unless it skips others.
    """

    branches: ClassVar[bool] = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        ignore_downstream_trigger_rules: bool = True,
        **kwargs: Unpack[PythonArguments],
    ) -> None:
        super().__init__(python_callable=python_callable, **kwargs)
        self.ignore_downstream_trigger_rules = self.argument_checks().boolean(
            "ignore_downstream_trigger_rules", ignore_downstream_trigger_rules
        )

    def execute(self, context: "Context") -> object:
        condition = self.call(context)
        if not condition:
            dag = dag_of(self)
            below = self.get_flat_relative_ids() if self.ignore_downstream_trigger_rules else self.downstream_task_ids
            if skipped := [name for name in below if not dag.task_dict[name].is_teardown]:
                record(context, "skipped", skipped)
                context["ti"].skip(sorted(skipped))
        return condition


def follow(operator: AbstractOperator, choice: Choice, context: Mapping[str, Any]) -> object:
    """Skip the direct downstream tasks that are neither chosen nor downstream of a chosen task. Returns the choice.

    A chosen task further downstream, or elsewhere in the DAG, is decided by its own trigger rule, as in Airflow.
    """
    names = listed(choice)
    dag, direct = dag_of(operator), operator.downstream_task_ids
    chosen = resolve(operator, names)
    # A join below both the branch and a chosen task is not skipped: its trigger rule counts the skipped tasks.
    followed = chosen.union(*(dag.task_dict[name].get_flat_relative_ids() for name in chosen))
    if direct:
        record(context, "followed", direct & followed)
    result = choice if choice is None or isinstance(choice, str) else names
    if result is not None and direct - followed:
        # Skipping ends the try before the result is stored.
        context["ti"].xcom_push(RETURN_KEY, result)
    context["ti"].skip(sorted(direct - followed))
    return result


def record(context: Mapping[str, Any], verb: str, task_ids: Collection[str]) -> None:
    """Push the decision as the XCom that Airflow pushes for it; `verb` is followed or skipped."""
    context["ti"].xcom_push("skipmixin_key", {verb: sorted(task_ids)})


def listed(choice: Choice) -> list[Any]:
    """The names of a choice in their order, and the names of a set sorted; FailTask if it is neither text nor a list."""
    if choice is None or isinstance(choice, str):
        return [] if choice is None else [choice]
    if not isinstance(choice, Iterable):
        raise FailTask(f"A branch must return a task ID, a list of them or None, not {choice!r} ({type(choice).__name__}).")
    names = list(choice)
    for name in names:
        if not isinstance(name, str):
            raise FailTask(f"A branch must return task IDs, not {name!r} ({type(name).__name__}).")
    return sorted(names) if isinstance(choice, set | frozenset) else names


def resolve(operator: AbstractOperator, names: Iterable[str]) -> set[str]:
    """The task IDs of a choice, in which a group stands for its first tasks; FailTask names a task that does not exist."""
    dag = dag_of(operator)
    chosen: set[str] = set()
    for name in names:
        group = dag.task_group_dict.get(name)
        if group is None and name not in dag.task_dict:
            raise FailTask(
                f"The branch {operator.task_id!r} chose {name!r}, which is not a task or task group"
                f"{near(name, [*dag.task_dict, *dag.task_group_dict])}"
            )
        chosen |= {name} if group is None else {task.task_id for task in group.roots}
    return chosen


def dag_of(operator: AbstractOperator) -> DAG:
    """The DAG of a running task."""
    assert isinstance(operator.dag, DAG), "a running task belongs to a DAG"
    return operator.dag


def zone_of(operator: AbstractOperator) -> tzinfo:
    """The time zone of the DAG of a running task."""
    return zones.load(dag_of(operator).timezone)


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


#: Takes the context. Returns whether the condition is true, or a pair of this and a reason.
Condition = Callable[[Mapping[str, Any]], "bool | tuple[bool, str | None]"]


def condition_hook(condition: Condition, *, wanted: bool, skip_message: str | None) -> Callable[[Mapping[str, Any]], None]:
    """A pre_execute hook that skips the task unless the condition is `wanted`."""
    if not callable(condition):
        raise fault(f"@task.run_if and @task.skip_if take a function of the context, not {condition!r}.")

    def skip_unless(context: Mapping[str, Any]) -> None:
        result = condition(context)
        is_true, why = result if isinstance(result, tuple) else (result, None)
        if bool(is_true) is not wanted:
            name = getattr(condition, "__name__", "the condition")
            raise SkipTask(why or skip_message or f"{name} is {'true' if is_true else 'false'}")

    return skip_unless
