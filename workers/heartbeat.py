"""What the worker's parent tells the database: that it lives, which of its processes died, and that it ends."""

import queue
import re
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from scheduler.messaging.wakeups import Wakeups
from scheduler.process.health import Contact, Pulse
from scheduler.process.pidfile import Pidfile
from scheduler.settings import Settings
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.heartbeats import Renewal
from scheduler.store.upkeep.settings_drift import SettingsDrift
from workers import logs
from workers.logs import worker_log
from workers.lost_processes import LostProcesses
from workers.running_tasks import Running, RunningTasks
from workers.task_stopper import LEASE_ENDED, WORKER_STOPPED, TaskStopper
from workers.watchdog import Watchdog

#: Beats between two looks for what tasks left behind: processes, and tries that no child runs.
BEATS_PER_SWEEP = 5
NO_LONGER_CURRENT = "this try is no longer the current one"
NOBODY_RUNS_IT = "its worker claimed it, but no process of that worker runs it"
#: The part of worker.heartbeat_timeout after which exclusive tasks are ended, see `lease_s`.
LEASE = 0.75
#: Seconds before a dispatch that no child runs is lost: longer than a child waits between two attempts to report.
UNKNOWN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How a worker shows in the registry."""

    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A dispatch whose process ended without reporting. `at_once`: the task itself did nothing wrong, so it need not wait."""

    ti_id: int
    dispatch_id: str
    reason: str
    log: str | None = None
    at_once: bool = False
    exclusive: bool = False


class Heart(threading.Thread):
    """Beats every `interval_s`; reports lost dispatches at once. While the database is away both wait and are made up for."""

    def __init__(
        self, engine: Engine, running_tasks: RunningTasks, identity: Identity, wakeups: Wakeups, *, interval_s: float,
        silent_s: float = 10.0, pidfile: Pidfile | None = None, settings_drift: SettingsDrift | None = None,
        settings: Settings | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name="heart", daemon=True)
        self._engine = engine
        self._running_tasks = running_tasks
        self._identity = identity
        self._pidfile = pidfile
        self.settings_drift = settings_drift
        self._wakeups = wakeups
        self._interval_s = interval_s
        self._lost: queue.SimpleQueue[Lost | None] = queue.SimpleQueue()
        self._unsettled: list[Lost] = []
        self._unknown_since: dict[str, float] = {}
        self._ended = threading.Event()
        self._away = False
        self._beats = 0
        self._stopper: TaskStopper | None = None
        self._watchdog: Watchdog | None = None
        self._lost_processes: LostProcesses | None = None
        self._pool: Callable[[], Collection[int]] = tuple
        self.pulse = Pulse("Its sign of life did not reach the database", silent_s)
        self.database = Contact()
        #: With settings the heartbeat is renewed in a thread of its own: what this one does may have to wait for the broker.
        self._renewal = None if settings is None else Renewal(
            settings, process_id=lambda: self.worker_id, interval_s=min(interval_s, silent_s / 4), timeout_s=silent_s,
            application="paceline worker",
            renewed=self._renewed, failed=self._database_failed, refused=lambda worker_id: running_tasks.lease(worker_id, 0.0),
        )  # fmt: skip

    @property
    def worker_id(self) -> str:
        """Under which id of the registry this worker works now."""
        return self._running_tasks.worker_id

    def register(self) -> str:
        """Enter the registry; the children find the id on the board."""
        one = self._identity
        self._running_tasks.worker_id = processes.register(
            self._engine,
            kind="worker",
            name=one.name,
            host=one.host,
            pid=one.pid,
            queues=one.queues,
            concurrency=one.concurrency,
        )
        if self.settings_drift is not None:
            self.settings_drift.enter(self._running_tasks.worker_id)
        if self._pidfile is not None:
            self._pidfile.note(self._running_tasks.worker_id)
        return self._running_tasks.worker_id

    def watch(
        self, *, stopper: TaskStopper, watchdog: Watchdog, orphans: LostProcesses, pool: Callable[[], Collection[int]]
    ) -> None:
        """Name those it works with; before `start`."""
        self._stopper, self._watchdog, self._lost_processes, self._pool = stopper, watchdog, orphans, pool

    def child_died(self, ti_id: int, dispatch_id: str, said: str) -> None:
        """A pool child ended without reporting this dispatch; `said` are Celery's words. Never blocks: the event loop calls it."""
        killed_for = self._stopper.killed_for(dispatch_id) if self._stopper is not None else None
        running = self._running_tasks.find(dispatch_id)
        self._lost.put(
            Lost(
                ti_id=ti_id,
                dispatch_id=dispatch_id,
                reason=killed_for or cause_of_death(said),
                log=running.log if running is not None else None,
                at_once=killed_for in {WORKER_STOPPED, LEASE_ENDED},
                exclusive=running is not None and running.exclusive,
            )
        )

    def abandon(self, running: list[Running]) -> None:
        """The worker ends at once: report what ran, as far as the database answers now."""
        for one in running:
            self._lost.put(Lost(ti_id=one.ti_id, dispatch_id=one.dispatch_id, reason=WORKER_STOPPED, log=one.log, at_once=True))
        self.finish(timeout_s=3.0)

    def start(self) -> None:
        super().start()
        if self._renewal is not None:
            self._renewal.start()

    def finish(self, *, timeout_s: float = 10.0) -> None:
        """Report what is still to report, leave the registry, end the threads."""
        self._ended.set()
        self._lost.put(None)
        if self.is_alive():
            self.join(timeout_s)

    def run(self) -> None:
        beat_at = time.monotonic()
        while not self._ended.is_set():
            self._collect(max(0.0, beat_at - time.monotonic()))
            if self._unsettled:
                self._attempt(self._settle)
            if time.monotonic() >= beat_at:
                self._attempt(self._beat)
                beat_at = time.monotonic() + self._interval_s
        self._collect(0.0)
        self._attempt(self._settle)
        if self._renewal is not None:
            self._renewal.end()
        self._attempt(lambda: processes.stop(self._engine, self._running_tasks.worker_id))

    def _collect(self, timeout_s: float) -> None:
        """Wait for a lost dispatch or the time of the next beat; take all there are."""
        try:
            lost = self._lost.get(timeout=timeout_s) if timeout_s else self._lost.get_nowait()
            while True:
                if lost is not None:
                    self._unsettled.append(lost)
                    if lost.log is not None:
                        logs.append_reason(lost.log, f"failed: {lost.reason}")
                lost = self._lost.get_nowait()
        except queue.Empty:
            return

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except DBAPIError as error:
            self._database_failed(error.orig)
        except Exception:
            worker_log.exception("a heartbeat failed; the next one comes in %g s", self._interval_s)
        else:
            self._database_answered()

    def _database_failed(self, error: BaseException | None) -> None:
        if not self._away:
            worker_log.warning("PostgreSQL does not answer (%s); heartbeats go on when it does", str(error).strip())
        self._away = True
        self.database.failed("PostgreSQL does not answer; what ended meanwhile is reported once it does.")

    def _database_answered(self) -> None:
        if self._away:
            worker_log.info("PostgreSQL answers again")
        self._away = False
        self.database.answered()

    def _renewed(self, worker_id: str, sent_at: float) -> None:
        self._running_tasks.lease(worker_id, sent_at + lease_s(self.pulse.limit_s))
        self.pulse.beat()
        self._database_answered()

    def _is_registered(self) -> bool:
        if self._renewal is not None:
            return not self._renewal.is_refused(self._running_tasks.worker_id)
        registered = processes.heartbeat(self._engine, self._running_tasks.worker_id)
        self.pulse.beat()
        return registered

    def _settle(self) -> None:
        while self._unsettled:
            lost = self._unsettled[0]
            if lost.exclusive and self._lost_processes is not None:
                self._lost_processes.end_now(self._pool)
            runs = processes.fail_lost(self._engine, lost.ti_id, lost.dispatch_id, lost.reason, at_once=lost.at_once)
            self._unsettled.pop(0)
            worker_log.warning("task instance %d (dispatch %s) was lost: %s", lost.ti_id, lost.dispatch_id, lost.reason)
            self._wakeups.wake("queue", *(f"run:{run}" for run in runs))

    def _beat(self) -> None:
        if not self._is_registered():
            former = self._running_tasks.worker_id
            worker_log.warning("worker %s was declared dead; it goes on as %s", former, self.register())
        self._expire_former()
        self._compare()
        if self.settings_drift is not None:
            self.settings_drift.look(self._running_tasks.worker_id)
        self._beats += 1
        if self._beats % BEATS_PER_SWEEP == 0:
            self._find_unknown()
            if self._lost_processes is not None:
                self._lost_processes.end(self._pool())
        self._bark()

    def _expire_former(self) -> None:
        """Have others go on with what a worker before this one left, without waiting for its signs of life."""
        dead = self._pidfile.take_dead() if self._pidfile is not None else []
        if dead:
            runs = processes.expire(self._engine, dead, why="is gone from its machine")
            self._wakeups.wake("queue", *(f"run:{run}" for run in runs))

    def _bark(self) -> None:
        """Start again if deaf. A worker that is stopping takes nothing on purpose."""
        if self._watchdog is None or self._stopper is None or self._stopper.draining:
            return
        if self._watchdog.deaf(time.monotonic()):
            worker_log.error("the worker takes no messages although some wait for it and it is free: it starts again")
            self._stopper.drain()

    def _compare(self) -> None:
        """Stop user code whose try was cleared, marked or declared lost meanwhile."""
        running = {one.dispatch_id: one.ti_id for one in self._running_tasks.running()}
        for dispatch_id in running.keys() - processes.still_held(self._engine, self._running_tasks.worker_id, running):
            # It may have reported since it was looked at: the warden asks the board again before it acts.
            if self._stopper is not None:
                self._stopper.stop(dispatch_id, NO_LONGER_CURRENT)

    def _find_unknown(self) -> None:
        """Lose what stands as running here although no child runs it: the answer to a claim was lost with its connection."""
        known = {one.dispatch_id for one in self._running_tasks.running()}
        said = processes.said_to_run(self._engine, self._running_tasks.worker_id)
        now = time.monotonic()
        self._unknown_since = {dispatch_id: self._unknown_since.get(dispatch_id, now) for dispatch_id in said.keys() - known}
        for dispatch_id, since in self._unknown_since.items():
            if now - since > UNKNOWN_S:
                self._lost.put(Lost(ti_id=said[dispatch_id], dispatch_id=dispatch_id, reason=NOBODY_RUNS_IT, at_once=True))


def lease_s(heartbeat_timeout_s: float) -> float:
    """Seconds after the sending of a heartbeat for which exclusive tasks may run.

    The database starts to count the timeout when the heartbeat arrives, which is later. What is left of the timeout is for ending
    the processes, and for clocks: that of the database may be set forward by so much.
    """
    return heartbeat_timeout_s * LEASE


def cause_of_death(said: str) -> str:
    """What Celery says of a lost process, in words for the task's author."""
    if by_signal := re.search(r"signal (\d+)(?: \((\w+)\))?", said):
        name = by_signal[2] or f"signal {by_signal[1]}"
        return f"the process was killed by {name}{' (possibly out of memory)' if name == 'SIGKILL' else ''}"
    if by_itself := re.search(r"exitcode (\d+)", said):
        return f"the process exited with code {by_itself[1]}"
    return f"the worker could not report how the task ended: {said}"
