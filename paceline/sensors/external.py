"""A sensor on runs or tasks of another DAG."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from paceline.authoring.task_arguments import TaskArguments
from paceline.authoring.triggers import ExternalResult, ExternalTrigger, Target, judge
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import ExternalTaskFailedError, FailTask, NotFoundError, SkipTask
from paceline.operators.python import EmptyOperator
from paceline.sensors.base import DeferrableArguments, DeferrableSensor
from paceline.states import RunState, TaskState

if TYPE_CHECKING:
    from paceline.authoring.task_instance import Context


class ExternalTaskMarker(EmptyOperator):
    """Marks a task of another DAG, `external_dag_id` and `external_task_id`, that depends on this one.

    Clearing this task does not clear the other, unlike in Airflow. So `logical_date` and `recursion_depth` have no effect.
    """

    template_fields: Sequence[str] = ("external_dag_id", "external_task_id", "logical_date")

    def __init__(
        self,
        *,
        external_dag_id: str,
        external_task_id: str,
        logical_date: str | datetime | None = "{{ logical_date.isoformat() }}",
        recursion_depth: int = 10,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.external_dag_id = self.argument_checks().text("external_dag_id", external_dag_id)
        self.external_task_id = self.argument_checks().text("external_task_id", external_task_id)
        self.logical_date: Any = logical_date.isoformat() if isinstance(logical_date, datetime) else logical_date
        self.recursion_depth = self.argument_checks().integer("recursion_depth", recursion_depth, least=1)


class ExternalTaskSensor(DeferrableSensor):
    """Waits until tasks, a task group, or (with neither) the run of another DAG are in one of `allowed_states` (success).

    `external_dag_id` is that DAG, with `external_task_id`, `external_task_ids` or `external_task_group_id`.

    The other run has the same logical date, or that minus `execution_delta` (a timedelta), or the dates that
    `execution_date_fn(logical_date)` returns. In a run without a logical date, the function gets `run_after`. The sensor is
    skipped or fails if one of them is in one of `skipped_states` or `failed_states`, and a retry looks again. Removed task
    instances do not count. With `check_existence` it fails if there is no such DAG or task. `deferrable=True` waits without a
    worker: a waiter checks once a second. `poll_interval` is an old name of `poke_interval`.
    """

    template_fields: Sequence[str] = ("external_dag_id", "external_task_id", "external_task_ids", "external_task_group_id")

    def __init__(
        self,
        *,
        external_dag_id: str | XComArg,
        external_task_id: str | XComArg | None = None,
        external_task_ids: Collection[str] | XComArg | None = None,
        external_task_group_id: str | None = None,
        allowed_states: Iterable[str] | None = None,
        skipped_states: Iterable[str] | None = None,
        failed_states: Iterable[str] | None = None,
        execution_delta: timedelta | None = None,
        execution_date_fn: Callable[..., Any] | None = None,
        check_existence: bool = False,
        poll_interval: float | None = None,
        **kwargs: Unpack[DeferrableArguments],
    ) -> None:
        if poll_interval is not None:
            kwargs.setdefault("poke_interval", poll_interval)
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.external_dag_id = self.text_or_result("external_dag_id", external_dag_id)
        ways = (external_task_id, external_task_ids, external_task_group_id)
        if sum(way is not None for way in ways) > 1:
            raise checks.refuse("give only one of external_task_id, external_task_ids and external_task_group_id.")
        self.external_task_id = external_task_id
        self.external_task_ids: Any = external_task_ids
        if external_task_ids is not None and not isinstance(external_task_ids, XComArg):
            self.external_task_ids = checks.texts("external_task_ids", external_task_ids)
        self.external_task_group_id = external_task_group_id
        states: type[RunState] | type[TaskState] = TaskState if any(isinstance(way, XComArg) or way for way in ways) else RunState
        self.allowed_states = checks.choices("allowed_states", allowed_states or (), states) or [str(TaskState.SUCCESS)]
        self.skipped_states = checks.choices("skipped_states", skipped_states or (), states)
        self.failed_states = checks.choices("failed_states", failed_states or (), states)
        twice = [state for state in self.allowed_states if state in {*self.skipped_states, *self.failed_states}]
        if twice or set(self.skipped_states) & set(self.failed_states):
            raise checks.refuse("a state can be in only one of allowed_states, skipped_states and failed_states.")
        if execution_delta is not None and execution_date_fn is not None:
            raise checks.refuse("give only one of execution_delta and execution_date_fn.")
        if execution_delta is not None and not isinstance(execution_delta, timedelta):
            raise checks.refuse(f"execution_delta must be a timedelta, not {execution_delta!r}.")
        self.execution_delta, self.execution_date_fn = execution_delta, execution_date_fn
        self.check_existence = checks.boolean("check_existence", check_existence)

    def execute(self, context: "Context") -> object:
        self._check_existence(context)
        return super().execute(context)

    def trigger(self, context: Mapping[str, Any]) -> ExternalTrigger:
        states = {name: getattr(self, name) for name in ("allowed_states", "skipped_states", "failed_states")}
        return ExternalTrigger([asdict(target) for target in self._targets(context)], **states)

    def execute_complete(self, context: Mapping[str, Any], event: Any = None) -> None:
        self._conclude(ExternalResult(event["verdict"]))

    def poke(self, context: Mapping[str, Any]) -> bool:
        answers = context["ti"].states(self._targets(context))
        verdict = judge(answers, allowed=self.allowed_states, skipped=self.skipped_states, failed=self.failed_states)
        self._conclude(verdict)
        return verdict is ExternalResult.DONE

    def _conclude(self, verdict: ExternalResult) -> None:
        if verdict is ExternalResult.SKIPPED or (verdict is ExternalResult.FAILED and (self.soft_fail or self.never_fail)):
            raise SkipTask(f"{self._shown()} ended in a state that skips this task.")
        if verdict is ExternalResult.FAILED:
            raise ExternalTaskFailedError(f"{self._shown()} ended in one of the failed_states {', '.join(self.failed_states)}.")

    def _targets(self, context: Mapping[str, Any]) -> list[Target]:
        dates, group = self._dates(context), self.external_task_group_id
        if group is not None:
            self._task_ids(context)
            return [Target(dag_id=self.external_dag_id, logical_date=date, group_id=group) for date in dates]
        tasks: Sequence[str | None] = self._task_ids(context) or [None]
        return [Target(dag_id=self.external_dag_id, logical_date=date, task_id=task) for date in dates for task in tasks]

    def _task_ids(self, context: Mapping[str, Any]) -> list[str]:
        if self.external_task_group_id is None:
            return [self.external_task_id] if self.external_task_id else list(self.external_task_ids or ())
        tasks = context["ti"].describe_dag(self.external_dag_id) or {}
        members = [name for name, groups in tasks.items() if self.external_task_group_id in groups]
        if not members:
            raise NotFoundError(f"DAG {self.external_dag_id!r} has no task group {self.external_task_group_id!r}.")
        return members

    def _dates(self, context: Mapping[str, Any]) -> list[datetime]:
        own = context.get("logical_date")
        if own is None and self.execution_date_fn is None:
            raise FailTask(
                "ExternalTaskSensor waits for a run with the same logical date, but this run has none: give it execution_date_fn."
            )
        own = own or context["dag_run"].run_after
        if self.execution_delta is not None:
            return [own - self.execution_delta]
        if self.execution_date_fn is None:
            return [own]
        dates = _called(self.execution_date_fn, own, context)
        return list(dates) if isinstance(dates, list | tuple | set) else [dates]

    def _check_existence(self, context: Mapping[str, Any]) -> None:
        if not self.check_existence:
            return
        tasks = context["ti"].describe_dag(self.external_dag_id)
        if tasks is None:
            raise NotFoundError(f"There is no DAG {self.external_dag_id!r} to wait for.")
        for task in self._task_ids(context):
            if task not in tasks:
                raise NotFoundError(f"DAG {self.external_dag_id!r} has no task {task!r} to wait for.")

    def _shown(self) -> str:
        what = self.external_task_group_id or self.external_task_id or ", ".join(self.external_task_ids or ())
        return f"DAG {self.external_dag_id!r}" + (f", {what}," if what else "")


def _called(function: Callable[..., Any], own: datetime, context: Mapping[str, Any]) -> Any:
    """The result of `execution_date_fn(logical_date)`, with the context as second argument if it takes one."""
    code = getattr(function, "__code__", None)
    wants_context = code is not None and code.co_argcount - len(getattr(function, "__defaults__", None) or ()) > 1
    return function(own, context) if wants_context else function(own)
