"""A run in this process: it is decided as in the scheduler, with states and XComs in memory, and runs one try at a time."""

import asyncio
import contextlib
import os
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from scheduler.authoring import context, xcom
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.dag import DAG
from scheduler.authoring.deferral import TaskDeferred, TaskRescheduled, encode, first_event
from scheduler.authoring.external import Counts, Target
from scheduler.authoring.xcom_arg import RETURN_KEY
from scheduler.authoring.xcom_sequence import listed
from scheduler.deciding import expansion
from scheduler.deciding.evaluate import Facts, evaluate
from scheduler.exceptions import PacelineError, SkipTask, XComError
from scheduler.masking import secrets_masker
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.states import Branched, Decision, TaskState
from workers import results
from workers.runtimes.protocol import Runtime
from workers.secrets_backend import EnvironmentBackend
from workers.xcom_pull import XComPull

#: JSON texts by task number, map index and key.
XComs = dict[tuple[int, int, str], str]
#: Used instead of the number of a run in the database.
NO_NUMBER = 0


@dataclass(slots=True)
class MemoryRun:
    """A run of `dag`. `plan` is its serialized form."""

    settings: Settings
    dag: DAG
    plan: SerializedDag
    dag_run: context.DagRun
    xcoms: XComs = field(default_factory=dict)
    states: dict[int, dict[int, TaskState]] = field(default_factory=dict)
    branched: list[Branched] = field(default_factory=list)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Run to the end, and yield a row for each task instance when it ends."""
        self.states = {no: {-1: TaskState.NONE} for no in range(len(self.plan.tasks))}
        while True:
            evaluation = evaluate(self.plan, self.states, Facts(branched=tuple(self.branched)))
            if evaluation.expand:
                for no in evaluation.expand:
                    yield from self._expand(no)
                continue
            ended = [decision for decision in evaluation.decisions if decision.state is not TaskState.SCHEDULED]
            ready = [decision for decision in evaluation.decisions if decision.state is TaskState.SCHEDULED]
            for decision in ended:
                yield self._row(decision, decision.state, decision.reason)
            # Run all instances of one task before its downstream tasks are decided.
            for decision in ready:
                if decision.task_no == ready[0].task_no and self.states[decision.task_no][decision.map_index] is TaskState.NONE:
                    yield from self._run(decision)
            if not evaluation.decisions:
                return

    def _expand(self, no: int) -> Iterator[dict[str, Any]]:
        """Create the instances of a mapped task."""
        spec = self.plan.tasks[no].expand
        assert spec is not None
        keys = expansion.reads(spec)
        lengths = {(name, key): length for name, key in keys if (length := self._length(name, key)) is not None}
        count, most = expansion.count(spec, lengths), self.settings.core.max_map_length
        decision = Decision(no, TaskState.NONE, "")
        if count is None:
            names = ", ".join(sorted(name for name, _ in keys))
            yield self._row(decision, TaskState.UPSTREAM_FAILED, f"{names} returned no list or dict to map over")
        elif count > most:
            reason = f"it would become {count} instances; core.max_map_length allows {most}"
            yield self._row(decision, TaskState.UPSTREAM_FAILED, reason)
        elif count == 0:
            yield self._row(decision, TaskState.SKIPPED, "there is nothing to map over")
        else:
            self.states[no] = dict.fromkeys(range(count), TaskState.NONE)

    def _length(self, task_id: str, key: str) -> int | None:
        no = self.plan.number[task_id]
        if self.plan.tasks[no].is_mapped:
            return sum((no, index, key) in self.xcoms for index in self.states[no])
        text = self.xcoms.get((no, -1, key))
        value = None if text is None else xcom.decode(text)
        return len(value) if isinstance(value, list | dict) else None

    def _run(self, decision: Decision) -> Iterator[dict[str, Any]]:
        task = self.plan.tasks[decision.task_no]
        ti = MemoryTaskInstance(self, decision.task_no, decision.map_index)
        started = time.monotonic()
        state, reason = _try(self.settings, self.dag.task_dict[task.task_id], ti)
        if state is TaskState.SUCCESS and task.branches:
            self.branched.append(Branched(task_no=decision.task_no, map_index=decision.map_index, skip=frozenset(ti.skipped)))
        yield self._row(decision, state, reason, time.monotonic() - started, ti.map_label)
        if state is TaskState.FAILED and self.plan.fail_fast:
            rest = [(no, index) for no, instances in self.states.items() for index in instances]
            for no, index in rest:
                if self.states[no][index] is TaskState.NONE and not self.plan.tasks[no].is_teardown:
                    reason = "fail_fast: another task failed"
                    yield self._row(Decision(no, TaskState.SKIPPED, reason, index), TaskState.SKIPPED, reason)

    def _row(
        self, decision: Decision, state: TaskState, reason: str, took_s: float = 0.0, label: str | None = None
    ) -> dict[str, Any]:
        self.states[decision.task_no][decision.map_index] = state
        result = self.xcoms.get((decision.task_no, decision.map_index, RETURN_KEY))
        return {
            "task_id": self.plan.tasks[decision.task_no].task_id,
            "map_index": decision.map_index,
            "map_label": label,
            "state": state.value,
            "took_s": round(took_s, 3),
            "result": None if result is None else xcom.decode(result),
            "reason": reason,
        }


class MemoryTaskInstance(XComPull):
    """The task instance that user code receives as `ti`. It stores XComs as JSON, so it rejects the same values as a worker."""

    def __init__(self, run: MemoryRun, task_no: int, map_index: int) -> None:
        super().__init__(run.plan, task_no, map_index)
        self.run = run
        self.task_id = run.plan.tasks[task_no].task_id
        self.dag_id, self.run_id, self.run_key = run.dag_run.dag_id, run.dag_run.run_id, NO_NUMBER
        self.external_executor_id = str(uuid.uuid4())
        self.try_number, self.max_tries, self.map_index = 1, run.plan.tasks[task_no].retries, map_index
        self.start_date = datetime.now(UTC)
        self.resume: dict[str, Any] | None = None
        self.skipped: tuple[str, ...] = ()
        self.map_label: str | None = None

    def now(self) -> datetime:
        """Return the time of this machine's clock."""
        return datetime.now(UTC)

    def skip(self, task_ids: Iterable[str]) -> None:
        """Skip these downstream tasks."""
        self.skipped = tuple(task_ids)

    def states(self, targets: Sequence[Target]) -> list[Counts]:
        """Raise PacelineError, because there are no other DAGs."""
        raise PacelineError(f"`paceline dags test` has no database, so it cannot look at DAG {targets[0].dag_id!r}.")

    def describe_dag(self, dag_id: str) -> None:
        """Return None, because there are no other DAGs."""

    def trigger_run(self, dag_id: str, **_: Any) -> str:
        """Raise PacelineError, because there are no other DAGs."""
        raise PacelineError(f"`paceline dags test` has no database, so it cannot trigger DAG {dag_id!r}.")

    def pull_one(self, task_id: str, key: str, map_index: int, default: Any) -> Any:
        """Return the XCom of one task instance, or `default`."""
        text = self.run.xcoms.get((self._dag.number.get(task_id, -1), map_index, key))
        return default if text is None else xcom.decode(text)

    def pull_all(self, task_id: str, key: str) -> list[Any]:
        """Return the XComs of the instances of a mapped task, in map order."""
        no = self._dag.number[task_id]
        texts = ((index, text) for (task, index, name), text in self.run.xcoms.items() if (task, name) == (no, key))
        return [xcom.decode(text) for _, text in sorted(texts)]

    def xcom_entries(self, task_id: str, key: str) -> Sequence[Any]:
        """Return the entries of a list or dict that a task pushed."""
        value = self.xcom_pull(task_id, key)
        if value is None:
            raise XComError(f"Task {task_id!r} has pushed no list or dict under {key!r} to map over.")
        return listed(value, f"The XCom {key!r} of task {task_id!r}")

    def xcom_push(self, key: str, value: Any) -> None:
        """Store `value` (JSON) under `key` for later tasks."""
        core = self.run.settings.core
        results.check_mapped_over(self._dag, self._task_no, {key: value}, core.max_map_length)
        text = xcom.encode(value, core.max_xcom_bytes, name=f"value of XCom {key!r}")
        self.run.xcoms[self._task_no, self.map_index, key] = text

    def set_map_label(self, label: str) -> None:
        """Set the display name of this instance of a mapped task."""
        self.map_label = label


def _try(settings: Settings, operator: AbstractOperator, ti: MemoryTaskInstance) -> tuple[TaskState, str]:
    """Run one try. Returns its final state, and a reason unless it succeeded."""
    from workers.runtimes.registry import RUNTIMES

    run, runtime = ti.run, RUNTIMES[operator.runtime]
    try:
        values = context.build(
            dag=run.dag,
            task=operator,
            ti=ti,
            dag_run=run.dag_run,
            backend=EnvironmentBackend(os.environ),
            conf_overrides_params=settings.core.dag_run_conf_overrides_params,
        )
        operator = values["task"] = operator.unmap(values, ti.map_index)
        value = _run_through(runtime, operator, ti, values, settings)
        value = value if operator.do_xcom_push else None
        pushed = {} if value is None else xcom.outputs(value, multiple_outputs=operator.multiple_outputs)
        if operator.runtime != "empty":
            no, most = run.plan.number[ti.task_id], settings.core.max_map_length
            results.check_mapped_over(run.plan, no, {RETURN_KEY: None, **pushed}, most)
        for key, part in pushed.items():
            ti.xcom_push(key, part)
    except SkipTask as skip:
        return TaskState.SKIPPED, secrets_masker.redact(str(skip))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        cause = runtime.explain(error)
        return TaskState.FAILED, secrets_masker.redact(cause or f"{type(error).__name__}: {error}")
    return TaskState.SUCCESS, ""


def _run_through(
    runtime: Runtime, operator: AbstractOperator, ti: MemoryTaskInstance, values: context.Context, settings: Settings
) -> object:
    """Run a task to its end. Reschedules and deferrals wait in this process."""
    from workers.spark.applications.jobs import NoJobs

    while True:
        try:
            return runtime.run(operator, values, settings, lambda: NoJobs(ti.now()))
        except TaskRescheduled as later:
            time.sleep(later.delay_s)
            ti.resume = later.resume
        except TaskDeferred as deferred:
            ti.resume = {"method": deferred.method_name, "kwargs": encode(deferred.kwargs, "kwargs of defer()")}
            with contextlib.suppress(TimeoutError):
                event = asyncio.run(asyncio.wait_for(first_event(deferred.trigger), deferred.timeout_s))
                ti.resume["event"] = encode(event, "the event")
