"""The results of runs in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from paceline.exceptions import PacelineError


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggeredRun:
    """A run of another DAG that a task requested. It is not created: a run in memory has no other DAGs."""

    dag_id: str
    run_id: str
    logical_date: datetime | None
    conf: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run of a DAG or of one task. `success` is whether its final state is success.

    `states`, `xcoms`, `reasons` and `errors` have the keys of `order`: the task IDs in the order in which they ended, and
    `task[2]` for an instance of a mapped task. `xcoms` holds the return values, `all_xcoms` all keys of each.
    `result["task"]` is the TaskResult of one of them.
    """

    # pytest shows the repr of a result whose assertion fails, and shortens it.
    dag_id: str
    run_id: str = field(repr=False)
    state: str
    order: list[str] = field(repr=False)
    states: Mapping[str, str] = field(repr=False)
    xcoms: Mapping[str, Any] = field(repr=False)
    all_xcoms: Mapping[str, Mapping[str, Any]] = field(repr=False)
    #: Why a task instance failed or was skipped.
    reasons: Mapping[str, str]
    #: Seconds of each task instance.
    durations: Mapping[str, float] = field(repr=False)
    #: The exceptions of user code.
    errors: Mapping[str, BaseException] = field(default_factory=dict, repr=False)
    #: The runs of other DAGs that TriggerDagRunOperator asked for, with dag_id, run_id, logical_date and conf. They are not made.
    triggered: Sequence[TriggeredRun] = field(default=(), repr=False)

    @property
    def success(self) -> bool:
        return self.state == "success"

    @property
    def failed(self) -> bool:
        return self.state == "failed"

    @property
    def error(self) -> BaseException | None:
        """The first exception of user code."""
        return next(iter(self.errors.values()), None)

    def __getitem__(self, name: str | tuple[str, int]) -> TaskResult:
        """The result of one task instance: `result["load"]`, of a mapped task `result["load[2]"]` or `result["load", 2]`.

        KeyError with the names that there are.
        """
        key = name if isinstance(name, str) else key_of(*name)
        if key not in self.states:
            raise KeyError(f"The run has no task instance {key!r}; it has {', '.join(self.states)}.")
        pushed = self.all_xcoms.get(key, {})
        return TaskResult(
            task_id=key.partition("[")[0],
            state=self.states[key],
            result=self.xcoms.get(key),
            xcoms=pushed,
            reason=self.reasons.get(key, ""),
            skipped=(),
            error=self.errors.get(key),
        )

    def raise_for_failure(self) -> None:
        """Raise the first exception of user code if the run failed; PacelineError with the reasons if there was none."""
        if self.success:
            return
        if self.error is not None:
            raise self.error
        why = "; ".join(f"{name}: {self.states[name]}{f' ({reason})' if reason else ''}" for name, reason in self.reasons.items())
        raise PacelineError(f"The run {self.run_id} of DAG {self.dag_id!r} is {self.state}. {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A run of one task. `xcoms` holds all that it pushed by key, and `result` its return value.

    For a mapped task, `result` is the list of the return values, and `xcoms` those of its first instance.
    """

    task_id: str
    state: str
    result: Any
    xcoms: Mapping[str, Any]
    reason: str
    #: The tasks that a branch skips; empty in a part of a RunResult.
    skipped: tuple[str, ...]
    #: The exception of user code that failed the last try.
    error: BaseException | None = field(default=None, repr=False)

    @property
    def success(self) -> bool:
        return self.state == "success"

    @property
    def xcom(self) -> Any:
        """`result`, under another name."""
        return self.result


def key_of(task_id: str, map_index: int) -> str:
    """The name of a task instance in the mappings of a result."""
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"
