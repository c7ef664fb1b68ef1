"""The callbacks of a run in memory: of its tasks before and after each try, and of the DAG at the end.

Emails, SLAs and deadlines are left out.
"""

import dataclasses
import sys
import traceback
from datetime import datetime
from typing import Any

from scheduler.authoring.dag import DAG
from scheduler.dagfiles import callback_context
from scheduler.states import FAILURES, RunState, TaskState
from workers.memory_store import Instance, MemoryStore

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

    def started(self, one: Instance) -> None:
        """A try starts. The resumption of a deferred or rescheduled try is no start."""
        if one.resume is None:
            self._call("on_execute", one, state=TaskState.RUNNING)

    def ended(self, one: Instance) -> None:
        """A try ended, or waits to go on, which is no event."""
        if one.state in EVENTS:
            self._call(EVENTS[one.state], one, state=one.state)

    def run_ended(self, state: RunState) -> None:
        """The run ended. Its context has the task instance that ended last, or failed last."""
        succeeded = state is RunState.SUCCESS
        about = [one for one in self._store.ended if succeeded or one.state in FAILURES]
        failed = [one for one in about if one.state is TaskState.FAILED]
        last = (failed or about)[-1] if failed or about else None
        reason = "success" if succeeded else "task_failure"
        self._call("dag_success" if succeeded else "dag_failure", last, state=last.state if last else None, reason=reason)

    def _call(self, kind: str, one: Instance | None, *, state: TaskState | None, reason: str | None = None) -> None:
        owner: Any = self._dag
        if not kind.startswith("dag_"):
            assert one is not None
            owner = self._dag.task_dict[self._store.plan.tasks[one.task_no].task_id]
        if not owner.callbacks[kind]:
            return
        call = self._event(kind, one, state, reason if reason is not None or one is None else one.reason)
        for function in callback_context.functions({self._dag.dag_id: self._dag}, call):
            try:
                function.call()
            except Exception:
                sys.stderr.write(f"The {kind} callback {function.name} of {call['about']} failed:\n{traceback.format_exc()}")

    def _event(self, kind: str, one: Instance | None, state: TaskState | None, reason: str | None) -> dict[str, Any]:
        """The event as services/delivery describes it to a callback process."""
        run = self._store.dag_run
        values = {item.name: getattr(run, item.name) for item in dataclasses.fields(run)}
        return {
            "kind": kind,
            "about": run.dag_id if one is None else f"{run.dag_id}.{self._store.plan.tasks[one.task_no].task_id}",
            "dag_id": run.dag_id,
            "run_id": run.run_id,
            "run": {name: _text(value) for name, value in values.items()},
            "ti": None if one is None else self._instance(one, state),
            "reason": reason,
            "data": {},
            "at": self._store.now().isoformat(),
            "blocking": [],
            "conf_overrides": self._conf_overrides,
            "attempt": 1,
            "is_rerun": False,
            "log_url": "",
        }

    def _instance(self, one: Instance, state: TaskState | None) -> dict[str, Any]:
        task = self._store.plan.tasks[one.task_no]
        return {
            "task_id": task.task_id,
            "map_index": one.map_index,
            "try_number": one.try_number,
            "max_tries": self._store.max_tries(task),
            "state": None if state is None else state.value,
            "start_date": _text(one.started_at),
            "end_date": _text(one.ended_at),
            "worker": self._worker_id,
        }


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
