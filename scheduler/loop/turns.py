"""What the result of each service means: log it, hint at runs to look at, wake the service that goes on from it."""

import logging
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import Engine

from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import client
from scheduler.services.assets import Assets
from scheduler.services.backfill import Backfill
from scheduler.services.deadlines import Deadlines
from scheduler.services.notify import Notify
from scheduler.services.plan import Plan
from scheduler.services.promote import Promote, Promoted
from scheduler.services.prune import Prune
from scheduler.services.queue import Queue, Queued
from scheduler.services.queue_report import QueueReport
from scheduler.services.rescue import Rescue
from scheduler.services.timeouts import Timeouts
from scheduler.services.undecided import Undecided
from scheduler.settings import Settings
from scheduler.states import RunState
from scheduler.store.dags import dags
from scheduler.store.dags.versions import Versions
from scheduler.store.runs import runs

log = logging.getLogger("paceline.scheduler")

AT_ONCE = 0.0
#: A hinted run that another scheduler held is tried again so often, after pauses of so many seconds, before it is left to the
#: slow poll: the other may have read it before what the hint is about.
HINT_TURNS = 20
HELD_PAUSE_S = 0.02
#: Bounds of the pause, in seconds, between two passes of the queue service that rings alone ask for.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.1
#: Between two batches of what is deleted by age: it may take its time.
PRUNE_PAUSE_S = 0.5
#: A service turns at least so often, in seconds, whatever stirs.
SELDOM_S = 30.0
#: Duties that would be due within this share of their interval join one that is, so that all of them cost one look. With a
#: half, any two of the same interval meet.
TOGETHER = 0.5
#: One turn of a service; seconds until it wants the next one, None for its interval.
Turn = Callable[[datetime], float | None]


@dataclass(slots=True)
class Duty:
    """When a service is due again, by this process's monotonic clock."""

    interval_s: float
    due_at: float = 0.0
    _turned_at: float = -math.inf
    _by_interval: bool = False

    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    def is_near(self) -> bool:
        """Whether it is due or would be soon."""
        return time.monotonic() >= self.due_at - (TOGETHER * min(self.interval_s, 1.0) if self._by_interval else 0.0)

    def only_looks(self) -> bool:
        """Whether it is due for no other reason than that its interval is over, and has turned lately."""
        return self._by_interval and self.due_at != 0.0 and time.monotonic() < self._turned_at + SELDOM_S

    def done(self, again_in_s: float | None = None) -> None:
        """Due again after `again_in_s`, else after the interval."""
        self._turned_at = time.monotonic()
        self.rest()
        if again_in_s is not None:
            self.due_at, self._by_interval = self._turned_at + again_in_s, False

    def rest(self) -> None:
        """Due again after the interval, without having turned; the jitter keeps schedulers from turning in step."""
        self.due_at = time.monotonic() + self.interval_s * random.uniform(0.9, 1.1)  # noqa: S311
        self._by_interval = True


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
    queue_report: Duty
    deadlines: Duty
    notify: Duty
    prune: Duty

    def all(self) -> tuple[Duty, ...]:
        return tuple(getattr(self, one.name) for one in fields(self))

    def next_due_at(self) -> float:
        return min(duty.due_at for duty in self.all())


class Turns:
    """The services of one scheduler, when each is due, and what they tell each other."""

    def __init__(self, engine: Engine, settings: Settings, scheduler_id: str) -> None:
        self._engine = engine
        self._settings = settings
        #: Runs to look at, with the turns left to get hold of each.
        self.hints: dict[int, int] = {}
        #: Runs in which something ended that the runs after them may wait for.
        self._passed: set[int] = set()
        self._queued_at = 0.0
        self._pause_s = SHORTEST_PAUSE_S
        publisher, versions = Publisher(self._settings), Versions()
        self.plan = Plan(self._engine, self._settings, versions)
        self.assets = Assets(self._engine, self._settings, versions)
        self.backfill = Backfill(self._engine, self._settings, versions)
        self.timeouts = Timeouts(self._engine, self._settings)
        self.promote = Promote(self._engine, self._settings, versions)
        self.undecided = Undecided(self._engine, versions)
        self.queue = Queue(self._engine, self._settings, publisher, scheduler_id)
        self.rescue = Rescue(self._engine, self._settings, publisher, client(self._settings))
        self.queue_report = QueueReport(self._engine, self._settings, client(self._settings))
        self.deadlines = Deadlines(self._engine)
        self.notify = Notify(self._engine, self._settings, scheduler_id)
        self.prune = Prune(self._engine, self._settings)
        config = self._settings.scheduler
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
            queue_report=Duty(poll_s),
            deadlines=Duty(poll_s),
            notify=Duty(poll_s),
            prune=Duty(self._settings.retention.interval),
        )

    def all(self) -> tuple[tuple[str, Duty, Turn], ...]:
        """Every duty with its service, in the order in which their work flows."""
        return (
            ("rescue", self.duties.rescue, self._turn_rescue),
            ("plan", self.duties.plan, self._turn_plan),
            ("assets", self.duties.assets, self._turn_assets),
            ("backfill", self.duties.backfill, self._turn_backfill),
            ("timeouts", self.duties.timeouts, self._turn_timeouts),
            ("promote", self.duties.promote, self._turn_promote),
            ("sweep", self.duties.sweep, self._turn_sweep),
            ("queue", self.duties.queue, self._turn_queue),
            ("queue_report", self.duties.queue_report, self._turn_queue_report),
            ("deadlines", self.duties.deadlines, self._turn_deadlines),
            ("notify", self.duties.notify, self._turn_notify),
            ("prune", self.duties.prune, self._turn_prune),
        )

    def rest(self, name: str, duty: Duty, now: datetime) -> None:
        """Nothing stirs for this service, so it does not turn."""
        if name == "rescue":
            self.rescue.rest(now)
        duty.rest()

    @property
    def queue_listens_at(self) -> float:
        """When, by this process's monotonic clock, a ring may wake the queue service again, see queue_pause_s."""
        return self._queued_at + self._pause_s

    def work_as(self, scheduler_id: str) -> None:
        """Go on under another id of the registry."""
        self.queue.scheduler_id = scheduler_id
        self.notify.work_as(scheduler_id)

    def wake(self, tokens: Iterable[str]) -> None:
        """Make due what these rings are about, see scheduler/messaging/wakeups.py."""
        for token in tokens:
            kind, _, key = token.partition(":")
            if kind == "run":
                self.hint([int(key)])
            elif kind == "next":
                self._passed.add(int(key))
                self.duties.promote.due_at = 0.0
            elif kind == "plan":
                self.duties.plan.due_at = self.duties.assets.due_at = self.duties.backfill.due_at = 0.0
            elif kind == "notify":
                self.duties.notify.due_at = 0.0
            else:
                self.duties.queue.due_at = 0.0  # not heard during the pause

    def hint(self, runs: list[int]) -> None:
        for run_id in runs:
            self.hints[run_id] = HINT_TURNS
        if runs:
            self.duties.promote.due_at = 0.0

    def _turn_plan(self, now: datetime) -> float | None:
        planned = self.plan.run_once(now)
        for dag_id, why in planned.broken.items():
            log.error("DAG %s cannot be planned: %s", dag_id, why)
        self.hint([made.id for made in planned.runs])
        if planned.more:
            return AT_ONCE
        # Not all schedulers in the same instant: each would find the same DAGs due.
        until_next_s = (planned.next_due - now).total_seconds() if planned.next_due else math.inf
        until_next_s += random.uniform(0, HELD_PAUSE_S)  # noqa: S311
        return until_next_s if until_next_s < self.duties.plan.interval_s else None

    def _turn_assets(self, now: datetime) -> float | None:
        triggered = self.assets.run_once(now)
        for dag_id, why in triggered.broken.items():
            log.error("DAG %s cannot be run for its assets: %s", dag_id, why)
        self.hint([made.id for made in triggered.runs])
        return AT_ONCE if triggered.more else None

    def _turn_backfill(self, now: datetime) -> float | None:
        done = self.backfill.run_once(now)
        for backfill_id, why in done.broken.items():
            log.error("Backfill %d cannot go on: %s", backfill_id, why)
        for backfill_id in done.ended:
            log.info("Backfill %d is complete", backfill_id)
        self.hint(done.runs)
        return AT_ONCE if done.more else None

    def _turn_timeouts(self, now: datetime) -> float | None:
        ended = self.timeouts.run_once(now)
        for run_id in ended.closed:
            log.warning("DAG run %d failed: its dagrun_timeout is over", run_id)
        self._go_on_after(ended.closed)
        return AT_ONCE if ended.more else None

    def _turn_promote(self, now: datetime) -> float | None:
        if self._passed:
            passed, self._passed = self._passed, set()
            self.hint(runs.following(self._engine, passed))
        hinted, self.hints = self.hints, {}
        promoted = self.promote.run_once(now, hinted)
        self.hint(sorted(promoted.unfinished))
        self._say_broken(promoted)
        self._go_on_after(promoted.closed)
        self.hints |= {run_id: hinted[run_id] - 1 for run_id in promoted.held_elsewhere if hinted[run_id] > 1}
        if promoted.ready:
            self.duties.queue.due_at = 0.0
        if promoted.closed or promoted.started or promoted.unfinished:
            return AT_ONCE  # a run that ended may have made room for one that waits
        if self.hints:
            return HELD_PAUSE_S
        if promoted.next_due_s is None or promoted.next_due_s >= self.duties.promote.interval_s:
            return None
        return max(promoted.next_due_s, HELD_PAUSE_S)

    def _turn_sweep(self, now: datetime) -> None:
        promoted = self.promote.run_once(now, also=self.undecided.find(without=self.hints), without=self.hints)
        self._say_broken(promoted)
        self._go_on_after(promoted.closed)
        self.hint(sorted(promoted.unfinished))
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
            for dag_id, most in dags.pause_if_failing(self._engine, failed).items():
                log.warning("DAG %s is paused: its last %d runs failed (max_consecutive_failed_dag_runs)", dag_id, most)

    def _say_broken(self, promoted: Promoted) -> None:
        """Log each run that cannot be decided, once; the sweep meets it again and again."""
        for run_id, why in promoted.broken.items():
            log.error("DAG run %d cannot be decided: %s", run_id, why)
        for run_id in promoted.recovered:
            log.info("DAG run %d can be decided again", run_id)

    def _turn_queue(self, now: datetime) -> float | None:
        queued = self.queue.run_once(now)
        since_last_s, self._queued_at = time.monotonic() - self._queued_at, time.monotonic()
        self._pause_s = queue_pause_s(queued, since_last_s)
        if not queued.sent:
            log.warning("The broker does not answer; %d message(s) will be sent again", len(queued.messages))
        if queued.more:
            return AT_ONCE
        # At random, since two that met would meet again.
        return HELD_PAUSE_S * random.uniform(0.5, 1.5) if queued.held_elsewhere else None  # noqa: S311

    def _turn_rescue(self, now: datetime) -> None:
        rescued = self.rescue.run_once(now)
        for process_id in rescued.dead:
            log.warning("%s is dead; its work goes on elsewhere", process_id)
        if rescued.sent_again:
            log.warning("%d message(s) were not in the broker and were sent again", len(rescued.sent_again))
        self.hint(rescued.runs)

    def _turn_queue_report(self, now: datetime) -> None:
        self.queue_report.run_once(now)

    def _turn_deadlines(self, now: datetime) -> None:
        missed = self.deadlines.run_once(now)
        if missed:
            log.warning("%d SLA(s) or deadline(s) were missed", missed)
            self.duties.notify.due_at = 0.0

    def _turn_notify(self, now: datetime) -> float | None:
        return AT_ONCE if self.notify.run_once(now).more else None

    def _turn_prune(self, now: datetime) -> float | None:
        pruned = self.prune.run_once(now)
        if any(pruned.deleted.values()):
            log.info("Deleted by age: %s", ", ".join(f"{count} {kind}" for kind, count in pruned.deleted.items() if count))
        return PRUNE_PAUSE_S if pruned.more else None

    def close(self) -> None:
        self.notify.close()


def queue_pause_s(queued: Queued, since_last_s: float) -> float:
    """Seconds in which rings need not wake the queue service: about until the workers have taken half of what the longest queue
    holds for them, at the pace at which they took the last of it. Every task that ends while others wait rings, and a pass for
    each of them would queue one task at a time. If everything that waited could be queued, there may be room for whatever rings.
    """
    if queued.ahead <= 0:
        return SHORTEST_PAUSE_S
    taken_per_s = max(len(queued.messages), 1) / max(since_last_s, SHORTEST_PAUSE_S)
    return min(max(queued.ahead / 2 / taken_per_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
