"""A run in this process, without a database, broker or workers: the tries of a worker over a store in memory, one at a time."""

import asyncio
import dataclasses
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from paceline.authoring import context, xcom
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.dag import DAG
from paceline.authoring.triggers import Counts, Target
from paceline.authoring.xcom import RETURN_KEY
from paceline.states import FAILURES, FINISHED, RunState, TaskState
from scheduler.dagfiles import callback_context
from scheduler.dagfiles.loaded_files import Loaded, LoadedFiles
from scheduler.dagfiles.loaded_versions import LoadedVersions
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.deferrals import Awaited
from scheduler.testing.in_memory.store import Instance, MemoryStore
from workers.process import logs
from workers.process.guard import Guard
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import InPlaceSeries, Slot
from workers.task import context as worker_context
from workers.task.execute import TryRunner
from workers.waiter.triggers import OtherRuns, Triggers

#: The event of a try by the state that it ended in.
EVENTS = {
    TaskState.SUCCESS: "on_success",
    TaskState.FAILED: "on_failure",
    TaskState.UP_FOR_RETRY: "on_retry",
    TaskState.SKIPPED: "on_skipped",
}


class MemoryCallbacks:
    """Calls the functions of the DAG file with the context that a callback process builds. An error in one is only printed."""

    def __init__(self, dag: DAG, store: MemoryStore, worker_id: str, *, conf_overrides: bool) -> None:
        self._dag = dag
        self._store = store
        self._worker_id = worker_id
        self._conf_overrides = conf_overrides

    def started(self, instance: Instance) -> None:
        """A try starts. The resumption of a deferred or rescheduled try is no start."""
        if instance.resume is None:
            self._call("on_execute", instance, state=TaskState.RUNNING)

    def ended(self, instance: Instance) -> None:
        """A try ended, or is suspended, which has no callback."""
        if instance.state in EVENTS:
            self._call(EVENTS[instance.state], instance, state=instance.state)

    def run_ended(self, state: RunState) -> None:
        """The run ended. Its context has the task instance that ended last, or failed last."""
        succeeded = state is RunState.SUCCESS
        about = [instance for instance in self._store.ended if succeeded or instance.state in FAILURES]
        failed = [instance for instance in about if instance.state is TaskState.FAILED]
        last = (failed or about)[-1] if failed or about else None
        reason = "success" if succeeded else "task_failure"
        self._call("dag_success" if succeeded else "dag_failure", last, state=last.state if last else None, reason=reason)

    def _call(self, kind: str, instance: Instance | None, *, state: TaskState | None, reason: str | None = None) -> None:
        owner: Any = self._dag
        if not kind.startswith("dag_"):
            assert instance is not None
            owner = self._dag.task_dict[self._store.plan.tasks[instance.task_no].task_id]
        if not owner.event_callbacks[kind]:
            return
        call = self._event(kind, instance, state, reason if reason is not None or instance is None else instance.reason)
        for function in callback_context.functions({self._dag.dag_id: self._dag}, call):
            try:
                function.call()
            except (Exception, SystemExit):
                sys.stderr.write(f"The {kind} callback {function.name} of {call['about']} failed:\n{traceback.format_exc()}")

    def _event(self, kind: str, instance: Instance | None, state: TaskState | None, reason: str | None) -> dict[str, Any]:
        """The event as services/delivery describes it to a callback process."""
        run = self._store.dag_run
        values = {item.name: getattr(run, item.name) for item in dataclasses.fields(run)}
        return {
            "kind": kind,
            "about": run.dag_id if instance is None else f"{run.dag_id}.{self._store.plan.tasks[instance.task_no].task_id}",
            "dag_id": run.dag_id,
            "run_id": run.run_id,
            "run": {name: _text(value) for name, value in values.items()},
            "ti": None if instance is None else self._instance(instance, state),
            "reason": reason,
            "data": {},
            "at": self._store.now().isoformat(),
            "blocking": [],
            "conf_overrides": self._conf_overrides,
            "attempt": 1,
            "is_rerun": False,
            "log_url": "",
        }

    def _instance(self, instance: Instance, state: TaskState | None) -> dict[str, Any]:
        task = self._store.plan.tasks[instance.task_no]
        return {
            "task_id": task.task_id,
            "map_index": instance.map_index,
            "try_number": instance.try_number,
            "max_tries": self._store.max_tries(task),
            "state": None if state is None else state.value,
            "start_date": _text(instance.started_at),
            "end_date": _text(instance.ended_at),
            "worker": self._worker_id,
        }


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


WORKER_ID = "this process"


class MemoryRun:
    """A run of `dag`. `plan` is its serialized form. Without `retries`, each task gets one try.

    Retries skip their delay. Sensors and triggers wait in this process, when nothing else can run.
    """

    def __init__(self, settings: Settings, dag: DAG, plan: SerializedDag, dag_run: context.DagRun, *, retries: bool = True) -> None:
        self.store = MemoryStore(plan, dag_run, max_map_length=settings.core.max_map_length, retries=retries)
        self._settings = settings
        self._callbacks = MemoryCallbacks(dag, self.store, WORKER_ID, conf_overrides=settings.core.dag_run_conf_overrides_params)
        self.runner = TryRunner(
            settings=settings,
            logs_folder=settings.logs_folder,
            store=self.store,
            files=LoadedDag(settings, dag),
            slot=(slot := _OwnSlot.create()),
            guard=Guard(),
            log=(terminal := _Terminal()),
            series=InPlaceSeries(slot),
        )
        #: The exceptions of user code that failed a try, with the number of the task instance.
        self.errors: list[tuple[int, BaseException]] = []
        self._failed = terminal.errors

    @property
    def state(self) -> RunState | None:
        """The final state of the run. None while it continues."""
        return self.store.state

    def rows(self) -> Iterator[dict[str, Any]]:
        """Run to the end, and yield a row for each task instance when it ends."""
        shown = 0
        while True:
            while shown < len(self.store.ended):
                yield self._row(self.store.ended[shown])
                shown += 1
            if ready := self.store.first_ready():
                self._run(ready)
            elif suspended := self.store.suspended():
                self._await(min(suspended, key=_due_at))
            else:
                break
        if self.state is not None:
            self._callbacks.run_ended(self.state)

    def rows_of(self, task_id: str) -> Iterator[dict[str, Any]]:
        """Run the instances of one task that is ready, and yield the row of each. No other task runs."""
        no = self.store.plan.number[task_id]
        for instance in [self.store.at[no, map_index] for map_index in sorted(self.store.states[no])]:
            while instance.state not in FINISHED:
                if instance.state is TaskState.SCHEDULED:
                    self._run(instance)
                else:
                    self._await(instance)
            yield self._row(instance)

    def context_of(self, operator: AbstractOperator, map_index: int = -1) -> context.Context:
        """The context of a task that is ready, for its instance with this map index. The run cannot continue afterwards."""
        no = self.store.plan.number[operator.task_id]
        instance = self.store.at.get((no, map_index)) or self.store.at[no, min(self.store.states[no])]
        claim = self.store.claim(*self.store.queue(instance), WORKER_ID)
        assert claim is not None, "it was ready"
        values = worker_context.build(claim, self.store.plan, operator, self.store, self._settings.core)
        unmapped = operator.unmap(values, claim.map_index)
        values["task"] = values["ti"].task = worker_context.decided(unmapped, self.store.plan.tasks[no], claim)
        return values

    def _run(self, instance: Instance) -> None:
        self._callbacks.started(instance)
        self.runner.run(*self.store.queue(instance))
        self._callbacks.ended(instance)
        self.errors += [(instance.id, error) for error in self._failed]
        self._failed.clear()

    def error_of(self, task_id: str, map_index: int) -> BaseException | None:
        """The exception of user code that failed the last try of a task instance."""
        instance = self.store.at[self.store.plan.number[task_id], map_index]
        return next((error for number, error in reversed(self.errors) if number == instance.id), None)

    def _await(self, instance: Instance) -> None:
        outcome: dict[str, Any] = {}
        if instance.state is TaskState.UP_FOR_RESCHEDULE:
            time.sleep(max(0.0, _due_at(instance) - time.monotonic()))
        elif instance.deferral is not None:
            outcome = asyncio.run(self._fired(instance))
        self.store.resume(instance, outcome)

    async def _fired(self, instance: Instance) -> dict[str, Any]:
        """Await the trigger of a deferred task instance as a waiter does. Returns its event or error, or that it timed out."""
        run, deferral = self.store.dag_run, instance.deferral
        assert deferral is not None
        triggers = Triggers(self._settings, _NoOtherRuns(self.store))
        row = Awaited(
            ti_id=instance.id, dispatch_id=instance.dispatch_id, classpath=deferral.classpath, kwargs=deferral.kwargs,
            file=None,  # the module of its class is loaded already
            dag_id=run.dag_id, run_id=run.run_id, task_id=self.store.plan.tasks[instance.task_no].task_id,
        )  # fmt: skip
        try:
            fired = await asyncio.wait_for(
                triggers.run(row), None if instance.due_at is None else instance.due_at - time.monotonic()
            )
        except TimeoutError:
            return {"timed_out": True}
        return fired.outcome

    def _row(self, instance: Instance) -> dict[str, Any]:
        result = instance.xcoms.get(RETURN_KEY)
        took = instance.ended_at - instance.started_at if instance.ended_at and instance.started_at else None
        return {
            "task_id": self.store.plan.tasks[instance.task_no].task_id,
            "map_index": instance.map_index,
            "map_label": instance.label,
            "state": instance.state.value,
            "took_s": round(took.total_seconds(), 3) if took else 0.0,
            "result": None if result is None else xcom.decode(result),
            "xcoms": {key: xcom.decode(text) for key, text in instance.xcoms.items()},
            "reason": instance.reason or "",
        }


def _due_at(instance: Instance) -> float:
    """The time at which it continues, on the monotonic clock. A retry does not wait."""
    if instance.state is TaskState.UP_FOR_RETRY:
        return 0.0
    return math.inf if instance.due_at is None else instance.due_at


class LoadedDag(LoadedVersions):
    """The files of a DAG that is loaded already."""

    def __init__(self, settings: Settings, dag: DAG) -> None:
        super().__init__(settings.dags_folder)
        self.files = _OnlyFile(settings, dag)


class _OnlyFile(LoadedFiles):
    def __init__(self, settings: Settings, dag: DAG) -> None:
        super().__init__(settings.dags_folder)
        self._dag = Loaded({dag.dag_id: dag}, {}, read_elsewhere=False, at=0.0)

    def _loaded(self, file: str) -> Loaded:
        return self._dag


class _OwnSlot(Slot):
    """The slot of a process whose tasks no other process stops."""

    def take_stop(self, dispatch_id: str) -> str | None:
        """End the process, as SIGTERM does between tasks."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        return None

    @classmethod
    def create(cls) -> "_OwnSlot":
        tasks = RunningTasks(1)
        tasks.worker_id = WORKER_ID
        tasks.lease(WORKER_ID, math.inf)
        return cls(tasks, 1)


class _Terminal:
    """The output of tasks goes to that of this process."""

    lost = None
    can_close = True

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def open(self, path: str, header: str, claim: Claim | None = None) -> None:
        pass

    def line(self, text: str, level: str = "INFO") -> None:
        pass

    def error(self, error: BaseException) -> None:
        """Write the traceback of `error`. Ctrl-C ends the run, not only the task."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        self.errors.append(error)
        sys.stderr.write(logs.shown(error))

    def close(self) -> None:
        pass


class _NoOtherRuns(OtherRuns):
    """Other runs for triggers, of which a run in memory has none."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.set_clock(store.now())

    async def states(self, targets: Sequence[Target]) -> Sequence[Counts]:
        return self._store.count_states(targets)
