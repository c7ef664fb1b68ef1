"""The loop of one scheduler: it turns the services, woken by the doorbell or a slow poll, until it is told to stop.

Any number of schedulers turn at once. None keeps state: kill one at any line and the others go on.
"""

import logging
import math
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from scheduler import doorbell
from scheduler.dagfiles.supervise import DagFileManager
from scheduler.dispatch import Publisher
from scheduler.doorbell import Doorbell, client
from scheduler.exceptions import CredentialsError, UnreachableError
from scheduler.services.assets import Assets
from scheduler.services.backfill import Backfill
from scheduler.services.deadlines import Deadlines
from scheduler.services.notify import Notify
from scheduler.services.plan import Plan
from scheduler.services.promote import Promote, Promoted
from scheduler.services.queue import Queue, Queued
from scheduler.services.rescue import Rescue
from scheduler.services.timeouts import Timeouts
from scheduler.settings import Settings
from scheduler.states import RunState
from scheduler.store import dags, database, migrate, processes, runs, schedules
from scheduler.store.versions import Versions

log = logging.getLogger("paceline.scheduler")

R = TypeVar("R")
AT_ONCE = 0.0
#: A hinted run that another scheduler held is tried again so often, after pauses of so many seconds, before it is left to the
#: slow poll: the other may have read it before what the hint is about.
HINT_TURNS = 20
HELD_PAUSE_S = 0.02
#: Bounds of the pause, in seconds, between two passes of the queue service that rings alone ask for.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.1


def run(settings: Settings, *, name: str | None = None) -> int:
    """Be a scheduler until SIGTERM, SIGINT, num_runs or run_duration; the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    engine = database.create(settings, application="paceline scheduler")
    database.wait(engine, log.warning)
    migrate.check(engine)
    try:
        doorbell.check(settings)
    except CredentialsError:
        raise
    except UnreachableError as error:
        # Deciding needs the database only; what is queued meanwhile is sent once the broker is there.
        log.warning("%s", error)
    loop = SchedulerLoop(engine, settings, name=name)
    files = DagFileManager(engine, settings, loop.scheduler_id, doorbell=Doorbell(settings))
    files.start()
    log.info("%s decides; DAG files from %s", loop.scheduler_id, settings.dags_folder)
    try:
        loop.run(stop)
    finally:
        files.stop()
        loop.close()
    log.info("%s stopped", loop.scheduler_id)
    return 0


@dataclass(slots=True)
class Duty:
    """When a service is due again, by this process's monotonic clock."""

    interval_s: float
    due_at: float = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    def done(self, again_in_s: float | None = None) -> None:
        """Due again after `again_in_s`, else after the interval; the jitter keeps schedulers from turning in step."""
        wait_s = self.interval_s * random.uniform(0.9, 1.1) if again_in_s is None else again_in_s  # noqa: S311
        self.due_at = time.monotonic() + wait_s


@dataclass(slots=True)
class Duties:
    """One a service; `sweep` is promote's look at runs that nobody hinted at."""

    heartbeat: Duty
    plan: Duty
    assets: Duty
    backfill: Duty
    timeouts: Duty
    promote: Duty
    sweep: Duty
    queue: Duty
    rescue: Duty
    deadlines: Duty
    notify: Duty

    def all(self) -> tuple[Duty, ...]:
        return tuple(getattr(self, one.name) for one in fields(self))

    def next_due_at(self) -> float:
        return min(duty.due_at for duty in self.all())


class SchedulerLoop:
    """The services of one scheduler and when each is due. `turn` is what tests call; `run` repeats it."""

    def __init__(self, engine: Engine, settings: Settings, *, name: str | None = None) -> None:
        self.engine = engine
        self.settings = settings
        self.name = name
        self.scheduler_id = self._register()
        #: Runs to look at, with the turns left to get hold of each.
        self.hints: dict[int, int] = {}
        #: Runs in which something ended that the runs after them may wait for.
        self._passed: set[int] = set()
        self._said_broken: set[int] = set()
        self._queued_at = 0.0
        self._pause_s = SHORTEST_PAUSE_S
        publisher, versions = Publisher(self.settings), Versions()
        self._doorbell = Doorbell(self.settings)
        self._plan = Plan(self.engine, self.settings, versions)
        self._assets = Assets(self.engine, self.settings, versions)
        self._backfill = Backfill(self.engine, self.settings, versions)
        self._timeouts = Timeouts(self.engine, self.settings)
        self._promote = Promote(self.engine, self.settings, versions)
        self._queue = Queue(self.engine, self.settings, publisher, self.scheduler_id)
        self._rescue = Rescue(self.engine, self.settings, publisher, client(self.settings))
        self._deadlines = Deadlines(self.engine)
        self._notify = Notify(self.engine, self.settings, self.scheduler_id)
        config = self.settings.scheduler
        poll_s = config.scheduler_idle_sleep_time
        self.duties = Duties(
            heartbeat=Duty(config.scheduler_heartbeat_sec),
            plan=Duty(poll_s),
            assets=Duty(poll_s),
            backfill=Duty(poll_s),
            timeouts=Duty(poll_s),
            promote=Duty(poll_s),
            sweep=Duty(poll_s),
            queue=Duty(poll_s),
            rescue=Duty(config.orphaned_tasks_check_interval),
            deadlines=Duty(poll_s),
            notify=Duty(poll_s),
        )

    def run(self, stop: threading.Event) -> None:
        """Turn until `stop`, num_runs or run_duration; an error ends one turn of one service, never the loop."""
        config = self.settings.scheduler
        started, turns = time.monotonic(), 0
        while not stop.is_set():
            self.turn()
            turns += 1
            if 0 <= config.num_runs <= turns or 0 <= config.run_duration <= time.monotonic() - started:
                return
            self._wait(stop)

    def turn(self) -> None:
        """Every service that is due, once, in the order in which their work flows."""
        try:
            now = _clock(self.engine)
        except OperationalError as error:
            log.warning("%s", database.translate(error))
            for duty in self.duties.all():
                duty.done()
            return
        for duty, service in (
            (self.duties.heartbeat, self._beat),
            (self.duties.rescue, self._turn_rescue),
            (self.duties.plan, self._turn_plan),
            (self.duties.assets, self._turn_assets),
            (self.duties.backfill, self._turn_backfill),
            (self.duties.timeouts, self._turn_timeouts),
            (self.duties.promote, self._turn_promote),
            (self.duties.sweep, self._turn_sweep),
            (self.duties.queue, self._turn_queue),
            (self.duties.deadlines, self._turn_deadlines),
            (self.duties.notify, self._turn_notify),
        ):
            if duty.is_due():
                duty.done(self._guarded(service, now))

    def close(self) -> None:
        """Say goodbye, so that nobody waits for this scheduler's signs of life."""
        self._notify.close()
        self._guarded(lambda _: processes.stop(self.engine, self.scheduler_id), None)
        self.engine.dispose()

    def _wait(self, stop: threading.Event) -> None:
        pause_s = self.duties.next_due_at() - time.monotonic()
        if pause_s <= 0:
            return
        tokens = self._doorbell.wait(pause_s)
        if tokens is None:  # the broker is away: poll
            stop.wait(min(pause_s, self.settings.scheduler.scheduler_idle_sleep_time))
            return
        for token in tokens:
            kind, _, key = token.partition(":")
            if kind == "run" and key.isdigit():
                self._hint([int(key)])
            elif kind == "next" and key.isdigit():
                self._passed.add(int(key))
                self.duties.promote.due_at = 0.0
            elif kind == "plan":
                self.duties.plan.due_at = self.duties.assets.due_at = self.duties.backfill.due_at = 0.0
            elif kind == "notify":
                self.duties.notify.due_at = 0.0
            else:
                self.duties.queue.due_at = min(self.duties.queue.due_at, self._queued_at + self._pause_s)

    def _hint(self, runs: list[int]) -> None:
        for run_id in runs:
            self.hints[run_id] = HINT_TURNS
        if runs:
            self.duties.promote.due_at = 0.0

    def _beat(self, now: datetime) -> None:
        if not processes.heartbeat(self.engine, self.scheduler_id):
            log.warning("%s was taken for dead and registers anew", self.scheduler_id)
            self.scheduler_id = self._queue.scheduler_id = self._register()

    def _turn_plan(self, now: datetime) -> float | None:
        planned = self._plan.run_once(now)
        for dag_id, why in planned.broken.items():
            log.error("DAG %s cannot be planned: %s", dag_id, why)
        self._hint([made.id for made in planned.runs])
        if planned.more:
            return AT_ONCE
        # Not all schedulers in the same instant: each would find the same DAGs due.
        until_next_s = (planned.next_due - now).total_seconds() if planned.next_due else math.inf
        return min(until_next_s + random.uniform(0, HELD_PAUSE_S), self.duties.plan.interval_s)  # noqa: S311

    def _turn_assets(self, now: datetime) -> float | None:
        triggered = self._assets.run_once(now)
        for dag_id, why in triggered.broken.items():
            log.error("DAG %s cannot be run for its assets: %s", dag_id, why)
        self._hint([made.id for made in triggered.runs])
        return AT_ONCE if triggered.more else None

    def _turn_backfill(self, now: datetime) -> float | None:
        done = self._backfill.run_once(now)
        for backfill_id, why in done.broken.items():
            log.error("Backfill %d cannot go on: %s", backfill_id, why)
        for backfill_id in done.ended:
            log.info("Backfill %d is complete", backfill_id)
        self._hint(done.runs)
        return AT_ONCE if done.more else None

    def _turn_timeouts(self, now: datetime) -> float | None:
        ended = self._timeouts.run_once(now)
        for run_id in ended.closed:
            log.warning("DAG run %d failed: its dagrun_timeout is over", run_id)
        self._go_on_after(ended.closed)
        return AT_ONCE if ended.more else None

    def _turn_promote(self, now: datetime) -> float | None:
        if self._passed:
            passed, self._passed = self._passed, set()
            self._hint(runs.following(self.engine, passed))
        hinted, self.hints = self.hints, {}
        promoted = self._promote.run_once(now, hinted)
        self._hint(sorted(promoted.unfinished))
        self._say_broken(promoted)
        self._go_on_after(promoted.closed)
        self.hints |= {run_id: hinted[run_id] - 1 for run_id in promoted.held_elsewhere if hinted[run_id] > 1}
        if promoted.ready:
            self.duties.queue.due_at = 0.0
        if promoted.closed or promoted.started or promoted.unfinished:
            return AT_ONCE  # a run that ended may have made room for one that waits
        if self.hints:
            return HELD_PAUSE_S
        return None if promoted.next_due_s is None else min(max(promoted.next_due_s, HELD_PAUSE_S), self.duties.promote.interval_s)

    def _turn_sweep(self, now: datetime) -> None:
        promoted = self._promote.run_once(now)
        self._say_broken(promoted)
        self._go_on_after(promoted.closed)
        self._hint(sorted(promoted.unfinished))
        if promoted.ready:
            self.duties.queue.due_at = 0.0
        if promoted.closed or promoted.started:
            self.duties.promote.due_at = 0.0

    def _go_on_after(self, closed: dict[int, RunState]) -> None:
        """A run that ended may have made room for another; one that failed may be one too many."""
        if closed:
            self.duties.plan.due_at = self.duties.promote.due_at = self.duties.backfill.due_at = 0.0
        failed = [run_id for run_id, state in closed.items() if state is RunState.FAILED]
        if failed:
            for dag_id, most in dags.pause_if_failing(self.engine, failed).items():
                log.warning("DAG %s is paused: its last %d runs failed (max_consecutive_failed_dag_runs)", dag_id, most)

    def _say_broken(self, promoted: Promoted) -> None:
        """Log each run that cannot be decided once; the sweep meets it again and again."""
        for run_id in promoted.broken.keys() - self._said_broken:
            log.error("DAG run %d cannot be decided: %s", run_id, promoted.broken[run_id])
        self._said_broken |= promoted.broken.keys()

    def _turn_queue(self, now: datetime) -> float | None:
        queued = self._queue.run_once(now)
        since_last_s, self._queued_at = time.monotonic() - self._queued_at, time.monotonic()
        self._pause_s = queue_pause_s(queued, since_last_s, self.settings.scheduler.queue_headroom)
        if not queued.sent:
            log.warning("The broker does not answer; %d message(s) will be sent again", len(queued.messages))
        if queued.more:
            return AT_ONCE
        return HELD_PAUSE_S if queued.held_elsewhere else None

    def _turn_rescue(self, now: datetime) -> None:
        rescued = self._rescue.run_once(now)
        for process_id in rescued.dead:
            log.warning("%s is dead; its work goes on elsewhere", process_id)
        if rescued.sent_again:
            log.warning("%d message(s) were not in the broker and were sent again", len(rescued.sent_again))
        self._hint(rescued.runs)

    def _turn_deadlines(self, now: datetime) -> None:
        missed = self._deadlines.run_once(now)
        if missed:
            log.warning("%d SLA(s) or deadline(s) were missed", missed)
            self.duties.notify.due_at = 0.0

    def _turn_notify(self, now: datetime) -> float | None:
        return AT_ONCE if self._notify.run_once(now).more else None

    def _guarded(self, service: Callable[[R], float | None], argument: R) -> float | None:
        try:
            return service(argument)
        except OperationalError as error:
            log.warning("%s", database.translate(error))
        except Exception:
            log.exception("A service failed and will be tried again; the other services go on")
        return None

    def _register(self) -> str:
        host = socket.gethostname()
        return processes.register(self.engine, kind="scheduler", name=self.name or f"scheduler@{host}", host=host, pid=os.getpid())


def queue_pause_s(queued: Queued, since_last_s: float, headroom: int) -> float:
    """Seconds in which rings need not wake the queue service: about until the workers have taken half of what a filled queue
    holds for them, at the pace at which they took the last of it. Every task that ends while others wait rings, and a pass for
    each of them would queue one task at a time. A queue that is not filled has room for whatever rings.
    """
    if not queued.filled:
        return SHORTEST_PAUSE_S
    taken_per_s = max(len(queued.messages), 1) / max(since_last_s, SHORTEST_PAUSE_S)
    return min(max(headroom / 2 / taken_per_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


def _clock(engine: Engine) -> datetime:
    with engine.connect() as connection:
        return schedules.clock(connection)
