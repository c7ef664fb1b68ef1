"""The heartbeat thread of a worker. It writes heartbeats, reports dead pool processes and unregisters the worker."""

import functools
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from celery.worker import state as celery_state
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from scheduler.messaging.brokers import BROKER_ERRORS, Brokers
from scheduler.messaging.publisher import broker_lists
from scheduler.messaging.wakeups import Wakeups
from scheduler.process.health import ServerHealth, StepHealth, VitalThread
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.heartbeats import Listener, Renewal
from scheduler.store.upkeep.processes import Registration
from workers.process import logs
from workers.process.logs import worker_log
from workers.supervision.connection_tests import ConnectionTests
from workers.supervision.descendants import Orphans
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import Running
from workers.supervision.task_stopper import LEASE_ENDED, WORKER_STOPPED, TaskStopper


class Watchdog:
    """Watches the queues of a worker. Call `must_restart` regularly: it measures the time since the last message."""

    def __init__(self, settings: Settings, queues: tuple[str, ...], concurrency: int) -> None:
        self._brokers = Brokers(settings)
        self._lists = [key for queue in queues for key in broker_lists(queue)]
        self._concurrency = concurrency
        self._patience_s = settings.worker.deaf_timeout
        self._taken = 0
        self._received_at: float | None = None
        self._silent_s = 0.0
        #: Whether it has begun to listen. On a machine with too much to do, the start can take longer than worker.deaf_timeout, and
        #: a worker that restarted then would never get to its first message.
        self.has_listened = False
        self.restarts = False
        #: Whether all brokers answer the watchdog, which has its own connections, and whether one does.
        self.broker = ServerHealth()
        self.is_cut_off = False

    def must_restart(self, now: float) -> bool:
        """Whether the worker must restart. `now` is the time on the monotonic clock."""
        taken = celery_state.all_total_count[0]
        busy = len(celery_state.reserved_requests) >= self._concurrency
        waiting = self._messages_wait()
        if self._received_at is None or not self.has_listened or busy or taken != self._taken or not waiting:
            self._taken, self._received_at = taken, now
        self._silent_s = now - self._received_at
        self.restarts = self.restarts or self._silent_s >= self._patience_s
        return self.restarts

    def complaint(self, now: float) -> str | None:
        """Report a worker that has received no messages for half of worker.deaf_timeout, or restarts for that reason."""
        if not self.restarts and self._silent_s < self._patience_s / 2:
            return None
        return f"It has taken no message for {self._silent_s:.0f} s although it is free and messages wait; it restarts itself."

    def _messages_wait(self) -> bool:
        try:
            waiting = any(self._brokers.each(lambda client: any(client.llen(key) for key in self._lists)))
        except BROKER_ERRORS:
            self.broker.failed("Redis does not answer; it takes messages once it does.")
            self.is_cut_off = True
            return False  # no messages can arrive without a broker
        self.is_cut_off = False
        if down := [broker.name for broker in self._brokers.all if broker.problem]:
            self.broker.failed(f"The broker {', '.join(down)} does not answer; it takes messages from the others.")
        else:
            self.broker.answered()
        return waiting


#: Heartbeats between two searches for leftovers of tasks: processes, and tries that no pool process runs.
BEATS_PER_SWEEP = 5
NO_LONGER_CURRENT = "this try is no longer the current one"
NOT_IN_PROGRESS = "its worker claimed it, but no process of that worker runs it"
#: The fraction of worker.heartbeat_timeout after which exclusive tasks are ended, see `lease_s`.
LEASE = 0.75
#: Seconds until a dispatch that no pool process has in progress is lost.
UNKNOWN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A dispatch whose process ended without a report. `at_once`: retry without delay, because the task is not the cause."""

    #: None if it is only in the database.
    ti_id: int | None
    dispatch_id: str
    reason: str
    log: str | None = None
    at_once: bool = False
    exclusive: bool = False


class HeartbeatThread(VitalThread, Listener):
    """Writes a heartbeat every `interval_s` seconds and reports lost dispatches at once.

    While the database is unreachable, both wait. Reports are not lost.
    """

    def __init__(
        self, engine: Engine, running_tasks: RunningTasks, registration: Registration, settings: Settings, pooler: str | None = None
    ) -> None:
        """`pooler` is the address of the pooler of this worker, if it has one."""
        super().__init__(name="heartbeat", daemon=True)
        interval_s, silent_s = settings.worker.heartbeat_sec, settings.worker.heartbeat_timeout
        self._engine = engine
        self._running_tasks = running_tasks
        self.registration = registration
        registration.entered = self._use_id
        self._wakeups = Wakeups(settings)
        self._interval_s = interval_s
        self._lost: queue.SimpleQueue[Lost | None] = queue.SimpleQueue()
        self._unsettled: list[Lost] = []
        self._unknown_since: dict[str, float] = {}
        #: Running dispatches that the last heartbeat did not find in the database.
        self._doubted: Mapping[str, int] = {}
        self._ended = threading.Event()
        self._beats = 0
        self._stopper: TaskStopper | None = None
        self._watchdog: Watchdog | None = None
        self._orphans: Orphans | None = None
        self._connection_tests: ConnectionTests | None = None
        self._pool: Callable[[], Collection[int]] = tuple
        self.health = StepHealth("Its heartbeat did not reach the database", silent_s)
        self.database = ServerHealth()
        #: Another thread renews the heartbeat, because this one may have to wait for the broker.
        self._renewal = Renewal(
            settings, self, process_id=lambda: self.worker_id, interval_s=min(interval_s, silent_s / 4), timeout_s=silent_s,
            application="paceline worker", pooler=pooler,
        )  # fmt: skip

    @property
    def worker_id(self) -> str:
        """The ID under which this worker is registered now."""
        return self.registration.id

    def _use_id(self, worker_id: str) -> None:
        """Let the pool processes read the ID from the running tasks."""
        self._running_tasks.worker_id = worker_id

    def watch(
        self, *, stopper: TaskStopper, watchdog: Watchdog, orphans: Orphans, pool: Callable[[], Collection[int]],
        connection_tests: ConnectionTests | None = None,
    ) -> None:  # fmt: skip
        """Set the other parts of the worker that this thread uses. Call it before `start`."""
        self._stopper, self._watchdog, self._orphans, self._pool = stopper, watchdog, orphans, pool
        self._connection_tests = connection_tests

    def child_died(self, ti_id: int, dispatch_id: str, message: str) -> None:
        """Record that a pool process ended without a report on this dispatch. `message` is that of Celery.

        Never blocks, because the event loop calls it.
        """
        in_place = self._running_tasks.in_place(dispatch_id)
        if in_place is None:
            self._lose(ti_id, dispatch_id, message)
        else:
            # It died with one or the other, before or after its report. The database has the one that runs.
            self._lose(in_place.ti_id, in_place.dispatch_id, message)
            self._lose(None, in_place.next_dispatch_id, message)

    def _lose(self, ti_id: int | None, dispatch_id: str, message: str) -> None:
        killed_for = self._stopper.killed_for(dispatch_id) if self._stopper is not None else None
        running = self._running_tasks.remove(dispatch_id)
        self._lost.put(
            Lost(
                ti_id=ti_id,
                dispatch_id=dispatch_id,
                reason=killed_for or cause_of_death(message),
                log=running.log if running is not None else None,
                at_once=killed_for in {WORKER_STOPPED, LEASE_ENDED},
                exclusive=running is not None and running.exclusive,
            )
        )

    def abandon(self, running: list[Running]) -> None:
        """Report the running tasks before the worker ends at once, if the database answers in time."""
        for task in running:
            self._lost.put(Lost(ti_id=task.ti_id, dispatch_id=task.dispatch_id, reason=WORKER_STOPPED, log=task.log, at_once=True))
        self.finish(timeout_s=3.0)

    def start(self) -> None:
        super().start()
        self._renewal.start()

    def finish(self, *, timeout_s: float = 10.0) -> None:
        """Send the remaining reports, unregister the worker and end the threads."""
        self._ended.set()
        self._lost.put(None)
        if self.is_alive():
            self.join(timeout_s)

    def work(self) -> None:
        beat_at = time.monotonic()
        while not self._ended.is_set():
            self._collect(max(0.0, beat_at - time.monotonic()))
            if self._unsettled:
                self._attempt(self._settle)
            if self._doubted:
                self._attempt(self._compare)
            if time.monotonic() >= beat_at:
                self._attempt(self._beat)
                beat_at = time.monotonic() + self._interval_s
        self._collect(0.0)
        self._attempt(self._settle)
        self._renewal.end()
        self._attempt(self.registration.leave)

    def _collect(self, timeout_s: float) -> None:
        """Wait for a lost dispatch until the next heartbeat, then take all lost dispatches."""
        try:
            lost = self._lost.get(timeout=timeout_s) if timeout_s else self._lost.get_nowait()
            while True:
                if lost is not None:
                    self._unsettled.append(lost)
                    if lost.log is not None:
                        self._attempt(functools.partial(logs.append_reason, lost.log, f"failed: {lost.reason}"))
                lost = self._lost.get_nowait()
        except queue.Empty:
            return

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except DBAPIError as error:
            self.failed(error.orig)
        except Exception:
            worker_log.exception("a heartbeat failed; the next attempt is in %g s", self._interval_s)

    def failed(self, error: BaseException | None) -> None:
        if self.database.failed("PostgreSQL does not answer; tasks that end are reported once it does."):
            worker_log.warning("PostgreSQL does not answer (%s); heartbeats continue when it does", str(error).strip())

    def claimed(self) -> Mapping[str, int]:
        return self._running_tasks.claimed()

    def refused(self, process_id: str) -> None:
        self._running_tasks.lease(process_id, 0.0)

    def renewed(self, process_id: str, sent_at: float) -> None:
        self._running_tasks.lease(process_id, sent_at + lease_s(self.health.limit_s))
        self.health.ran()
        if self.database.answered():
            worker_log.info("PostgreSQL answers again")

    def _settle(self) -> None:
        while self._unsettled:
            lost = self._unsettled[0]
            if lost.exclusive and self._orphans is not None:
                self._orphans.end_now(self._pool)
            runs = transact(self._engine, processes.fail_lost, lost.ti_id, lost.dispatch_id, lost.reason, at_once=lost.at_once)
            self._unsettled.pop(0)
            if runs:
                worker_log.warning("dispatch %s was lost: %s", lost.dispatch_id, lost.reason)
            self._wake(runs)

    def _wake(self, runs: Collection[int]) -> None:
        self._wakeups.wake("queue", *(f"run:{run}" for run in runs))

    def _beat(self) -> None:
        former = self.worker_id
        if self._renewal.is_refused(former):
            worker_log.warning("worker %s was declared lost; it continues as %s", former, self.registration.enter())
        if runs := self.registration.expire_former():
            self._wake(runs)
        self.registration.compare_settings()
        if self._connection_tests is not None:
            self._connection_tests.take()
        self._beats += 1
        if self._beats % BEATS_PER_SWEEP == 0:
            self._find_unknown()
            if self._orphans is not None:
                self._orphans.end(self._pool())
        self._restart_if_silent()

    def drain(self) -> None:
        """End when the running tasks have ended, because a person asked for it."""
        if self._stopper is not None and not self._stopper.draining:
            worker_log.warning("stopping: this worker was asked to drain")
            self._stopper.drain()

    def is_draining(self) -> bool:
        return self._stopper is not None and self._stopper.draining

    def _restart_if_silent(self) -> None:
        """Restart the worker if it receives no messages. A worker that is stopping takes none on purpose."""
        if self._watchdog is None or self._stopper is None or self._stopper.draining:
            return
        if self._watchdog.must_restart(time.monotonic()):
            worker_log.error("the worker has free slots but takes no messages although some wait: restarting it")
            self._stopper.drain()

    def doubted(self, dispatches: Mapping[str, int]) -> None:
        """Let this thread compare at once."""
        self._doubted = dispatches
        self._lost.put(None)

    def _compare(self) -> None:
        """Stop user code whose try was cleared, marked or declared lost."""
        doubted = self._doubted
        running = {dispatch_id: ti_id for dispatch_id, ti_id in self._running_tasks.claimed().items() if dispatch_id in doubted}
        if running:
            held = transact(self._engine, processes.still_held, self.worker_id, running)
            for dispatch_id in running.keys() - held:
                # The task may have reported in the meantime: the task stopper checks the running tasks again before it acts.
                if self._stopper is not None:
                    self._stopper.stop(dispatch_id, NO_LONGER_CURRENT)
        if self._doubted is doubted:
            self._doubted = {}

    def _find_unknown(self) -> None:
        """Report tries as lost that the database has as running here but no pool process has in progress.

        The cause is a claim whose answer was lost with its connection. A task that has ended stays in progress until its report is
        stored, which takes as long as the database accepts no writes.
        """
        known = self._running_tasks.in_progress()
        claimed = transact(self._engine, processes.stored_as_running, self.worker_id)
        now = time.monotonic()
        self._unknown_since = {dispatch_id: self._unknown_since.get(dispatch_id, now) for dispatch_id in claimed.keys() - known}
        for dispatch_id, since in self._unknown_since.items():
            if now - since > UNKNOWN_S:
                self._lost.put(Lost(ti_id=claimed[dispatch_id], dispatch_id=dispatch_id, reason=NOT_IN_PROGRESS, at_once=True))


def lease_s(heartbeat_timeout_s: float) -> float:
    """Return the seconds, from the sending of a heartbeat, for which exclusive tasks may run.

    The timeout in the database starts later, when the heartbeat arrives. The rest of the timeout is reserved for ending the
    processes, and for a database clock that is set forward by at most that time.
    """
    return heartbeat_timeout_s * LEASE


def cause_of_death(message: str) -> str:
    """Translate Celery's message about a lost process into a reason for users."""
    if by_signal := re.search(r"signal (\d+)(?: \((\w+)\))?", message):
        name = by_signal[2] or f"signal {by_signal[1]}"
        return f"the process was killed by {name}{' (possibly out of memory)' if name == 'SIGKILL' else ''}"
    if by_itself := re.search(r"exitcode (\d+)", message):
        return f"the process exited with code {by_itself[1]}"
    return f"the worker could not report how the task ended: {message}"
