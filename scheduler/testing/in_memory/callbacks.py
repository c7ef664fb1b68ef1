"""The callbacks of a run in memory: of its tasks before and after each try, and of the DAG at the end.

Emails, SLAs and deadlines are left out.
"""

import dataclasses
import sys
import traceback
from datetime import datetime
from typing import Any

from paceline.authoring.dag import DAG
from paceline.states import FAILURES, RunState, TaskState
from scheduler.dagfiles import callback_context
from scheduler.testing.in_memory.store import Instance, MemoryStore

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
