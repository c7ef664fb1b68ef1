"""A run in this process, without a database, broker or workers: the tries of a worker over a store in memory, one at a time."""

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.authoring import context, xcom
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.dag import DAG
from paceline.authoring.external import Counts, Target
from paceline.authoring.xcom_arg import RETURN_KEY
from paceline.states import FINISHED, RunState, TaskState
from scheduler.dagfiles.load import Loaded, LoadedFiles
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.deferrals import Awaited
from scheduler.testing.in_memory.callbacks import MemoryCallbacks
from scheduler.testing.in_memory.store import Instance, MemoryStore
from workers.process import logs
from workers.process.guard import Guard
from workers.supervision.running_tasks import RunningTasks, Slot
from workers.task import context as worker_context
from workers.task.execute import TryRunner
from workers.task.in_place import Continuing
from workers.waiter.triggers import OtherRuns, Triggers

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
            continuing=Continuing(slot),
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


class LoadedDag(LoadedFiles):
    """The files of a DAG that is loaded already."""

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
