"""The task stopper: stops tasks that were cleared, marked or timed out, and all tasks when the worker stops.

It is a thread of the worker's parent process. It uses neither the database nor the broker, so it works while they are unreachable.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from celery.worker import state as celery_state

from scheduler.process.health import StepHealth, VitalThread
from workers.process.logs import worker_log
from workers.supervision.descendants import kill_tree
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import Running

LOOK_INTERVAL_S = 0.1
#: The same while no task runs. A task that starts in between gets REACTION_S before it may be killed.
IDLE_INTERVAL_S = 0.5
#: Seconds without an iteration until the task stopper is unhealthy. Killing a large process tree takes long.
SILENT_S = 10.0
#: Seconds for user code to react to a SIGTERM, or to its own timeout, before its process is killed.
REACTION_S = 10.0
#: Seconds for a worker to shut down cleanly after its tasks have ended.
CLOSING_S = 15.0
WORKER_STOPPED = "worker was stopped"
LEASE_ENDED = "the lease of its worker ended: PostgreSQL was not reached in time"


@dataclass(frozen=True, slots=True)
class _Request:
    running: Running
    reason: str
    kill_at: float


class TaskStopper(VitalThread):
    """The thread that stops tasks.

    `pool` returns the process IDs of the pool processes. `on_abort` receives the running tasks when the worker ends at once.
    `on_drain` is called when the worker begins to drain, and must be safe in a signal handler. `leave` ends the process at once.
    """

    def __init__(
        self,
        running_tasks: RunningTasks,
        *,
        grace_s: float,
        pool: Callable[[], Collection[int]],
        on_abort: Callable[[list[Running]], None],
        on_drain: Callable[[], object],
        leave: Callable[[], None],
    ) -> None:
        super().__init__(name="task-stopper", daemon=True)
        self._running_tasks = running_tasks
        self._grace_s = grace_s
        self._pool = pool
        self._on_abort = on_abort
        self._on_drain = on_drain
        self._leave = leave
        self._requests: dict[str, _Request] = {}
        self._killed: dict[str, str] = {}
        self._lock = threading.Lock()
        self._drained_since: float | None = None
        self._logged_draining = False
        self._abort = threading.Event()
        self._done = threading.Event()
        self.health = StepHealth("The thread that stops tasks has not run", SILENT_S)
        #: The time of the event loop's last tick. It does not tick while the broker is unreachable.
        self.loop_seen_at = time.monotonic()

    @property
    def draining(self) -> bool:
        return self._drained_since is not None

    def drain(self) -> None:
        """Take no more tasks, let running ones end within the grace period, stop the rest and end the worker.

        A second call aborts. Safe in a signal handler.
        """
        if self._drained_since is None:
            # First the pool processes: no task may continue in place once the thread has logged that the worker stops.
            self._running_tasks.drain()
            self._drained_since = time.monotonic()
            self._on_drain()
        else:
            self.abort()

    def abort(self) -> None:
        """End the worker at once."""
        self._abort.set()

    def end(self) -> None:
        self._done.set()

    def stop(self, dispatch_id: str, reason: str) -> None:
        """Send SIGTERM to the pool process that runs this dispatch, and kill it later if it does not react."""
        with self._lock:
            if dispatch_id in self._requests:
                return
            running = self._running_tasks.ask_stop(dispatch_id, reason)
            if running is None:
                return
            self._requests[dispatch_id] = _Request(running, reason, time.monotonic() + REACTION_S)
        worker_log.info("stopping dispatch %s of task instance %d: %s", dispatch_id, running.ti_id, reason)
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGTERM)

    def killed_for(self, dispatch_id: str) -> str | None:
        """Return why the task stopper killed the process of a dispatch; None if it did not."""
        return self._killed.get(dispatch_id)

    def work(self) -> None:
        while not self._done.wait(self._pause_s()):
            try:
                self._look()
            except Exception:
                worker_log.exception("the tasks to stop could not be looked at; the next attempt follows")
            else:
                self.health.ran()

    def _look(self) -> None:
        now = time.monotonic()
        if self._abort.is_set():
            self._end_now()
        self._kill_unresponsive(now)
        for task in self._running_tasks.unleased():
            self._kill(task, LEASE_ENDED)
        if self._drained_since is not None:
            self._drain(now, self._drained_since)

    def _pause_s(self) -> float:
        busy = self._requests or self.draining or self._abort.is_set() or self._running_tasks.running()
        return LOOK_INTERVAL_S if busy else IDLE_INTERVAL_S

    def _kill_unresponsive(self, now: float) -> None:
        running = {task.dispatch_id: task for task in self._running_tasks.running()}
        for dispatch_id, request in list(self._requests.items()):
            if dispatch_id not in running:
                del self._requests[dispatch_id]
            elif now >= request.kill_at:
                self._kill(running[dispatch_id], request.reason)
        for task in running.values():
            if task.deadline is not None and now >= task.deadline + REACTION_S:
                self._kill(task, f"it ran longer than its execution_timeout and did not react within {REACTION_S:g} s")

    def _drain(self, now: float, since: float) -> None:
        running = self._running_tasks.running()
        if not self._logged_draining:
            self._logged_draining = True
            worker_log.info("stopping: %d tasks have %g s to end; another signal ends them now", len(running), self._grace_s)
        if now >= since + self._grace_s:
            for task in running:
                self.stop(task.dispatch_id, WORKER_STOPPED)
        loop_is_away = now >= self.loop_seen_at + 2.0
        if loop_is_away and not running:
            celery_state.should_stop = 0
        if now >= since + self._grace_s + REACTION_S + CLOSING_S:
            worker_log.error("the worker does not end by itself; ending it now")
            self.abort()

    def _kill(self, running: Running, reason: str) -> None:
        if running.dispatch_id not in self._killed:
            worker_log.warning("killing process %d (dispatch %s): %s", running.pid, running.dispatch_id, reason)
            self._killed[running.dispatch_id] = reason
            kill_tree(running.pid)

    def _end_now(self) -> None:
        running = self._running_tasks.running()
        # First the reason: the event loop may notice a death, and report it, before `on_abort` does.
        for task in running:
            self._killed.setdefault(task.dispatch_id, WORKER_STOPPED)
        for pid in self._pool():
            kill_tree(pid)
        self._on_abort(running)
        self._leave()
