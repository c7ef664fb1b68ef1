"""The scheduler process: a loop that runs its services on wakeups and on a slow poll, until it is stopped.

Run as many schedulers as you like. All are active and stateless, and any can be killed at any point.
"""

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from paceline.exceptions import CredentialsError, UnreachableError
from scheduler.dagfiles import process_tree
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.bundles import BundleManager
from scheduler.dagfiles.supervise import DagFileManager
from scheduler.messaging import brokers
from scheduler.messaging.brokers import Brokers
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import BUNDLES_KEY, QUEUE, Wakeups
from scheduler.process import hardening, log_format, measures, role
from scheduler.process.pidfile import Pidfile
from scheduler.services.assets import Assets
from scheduler.services.backfill import Backfill
from scheduler.services.deadlines import Deadlines
from scheduler.services.heartbeat import Heartbeat, initial_health
from scheduler.services.notify import Notify
from scheduler.services.plan import Plan
from scheduler.services.promote import STARTERS, Promote
from scheduler.services.prune import Prune
from scheduler.services.queue import Queue
from scheduler.services.queue_report import QueueReport
from scheduler.services.rescue import Rescue
from scheduler.services.service import LONGEST_SHARED_SKIP_S, BaseService, Result, Timer
from scheduler.services.sweep import Sweep
from scheduler.services.timeouts import Timeouts
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db import clock, database, migrate, sqlstates
from scheduler.store.upkeep import pending_work

log = logging.getLogger("paceline.scheduler")

S = TypeVar("S", bound=BaseService)

#: Seconds without starting a service after which the loop counts as hung. A service that waits for the broker ends sooner.
HANGS_S = 60.0


def run(settings: Settings, *, name: str | None = None) -> int:
    """Run a scheduler until SIGTERM, SIGINT, num_runs or run_duration. Returns the exit code."""
    began = time.monotonic()
    role.prepare(settings.database_url)
    hardening.forget()
    log_format.to_stderr(settings.logs.format, "scheduler")
    process_tree.become_reaper()
    engine = database.create(settings, application="paceline scheduler", by_index=True)
    migrate.wait(engine, log.warning)
    try:
        brokers.check(settings)
    except CredentialsError:
        raise
    except UnreachableError as error:
        # Decisions need only the database. Messages are sent once the broker answers.
        log.warning("%s", error)
    with role.running("scheduler", settings.run_folder) as process:
        loop = SchedulerLoop(engine, settings, name=name, pidfile=process.pidfile, began=began)
        process.ending.callback(loop.close)
        files = DagFileManager(engine, settings, lambda: loop.scheduler_id, wakeups=Wakeups(settings))
        files.start()
        process.ending.callback(files.stop)
        cache = BundleCache.of(settings, StoredContents.over(functools.partial(database.transact, engine), settings))
        own_wakeups = Wakeups(settings, BUNDLES_KEY)
        bundles = BundleManager(
            engine, settings, lambda: loop.scheduler_id, cache, wakeups=Wakeups(settings), own_wakeups=own_wakeups
        )
        bundles.start()
        process.ending.callback(bundles.stop)
        drift = loop.heartbeat.registration.settings_drift
        report = loop.health.combined(lambda: loop.scheduler_id, files.complaint, drift, bundles.complaint)
        process.serve_health(report, settings.scheduler.health_address, settings.scheduler.health_port)
        log.info("%s started; DAGs folder %s", loop.scheduler_id, settings.dags_folder)
        loop.run(process.stop)
    log.info("%s stopped", loop.scheduler_id)
    return 0


def services(
    engine: Engine, settings: Settings, scheduler_id: Callable[[], str], *, began: float | None = None
) -> tuple[BaseService, ...]:
    """The services of one scheduler, in the order in which their work flows."""
    publisher, versions, servers = Publisher(settings), Versions(), Brokers(settings)
    promote = Promote(engine, settings, versions)
    return (
        Rescue(engine, settings, publisher, servers, began=began),
        Plan(engine, settings, versions),
        Assets(engine, settings, versions),
        Backfill(engine, settings, versions),
        Timeouts(engine, settings),
        promote,
        Sweep(engine, settings, versions, lambda: promote.hints),
        Queue(engine, settings, publisher, scheduler_id),
        QueueReport(engine, settings, servers),
        Deadlines(engine, settings),
        Notify(engine, settings, scheduler_id),
        Prune(engine, settings),
    )


class SchedulerLoop:
    """Runs each service when it is due. `run_once` is one pass, which tests call directly; `run` repeats it.

    `began` is the monotonic time at which the process began.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        name: str | None = None,
        pidfile: Pidfile | None = None,
        began: float | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.health = initial_health(settings)
        self.heartbeat = Heartbeat(
            engine, settings, scheduler=name, pidfile=pidfile, is_wanted=self._is_running, renewed=self.health.heartbeat.ran
        )
        self.services = services(engine, settings, lambda: self.scheduler_id, began=began)
        self.timers = {service.name: Timer(service.interval_s) for service in (self.heartbeat, *self.services)}
        self.conditions = {service.name: service.pending for service in self.services if service.pending is not None}
        self._wakeups = Wakeups(settings)

    @property
    def scheduler_id(self) -> str:
        """The ID of this scheduler in the registry. It gets another one if it was declared lost."""
        return self.heartbeat.scheduler_id

    def service(self, kind: type[S]) -> S:
        """The service of this class."""
        return next(service for service in self.services if isinstance(service, kind))

    def run(self, stop: threading.Event) -> None:
        """Repeat passes until `stop`, num_runs or run_duration. An error ends one run of one service, never the loop."""
        config = self.settings.scheduler
        started, passes = time.monotonic(), 0
        self.heartbeat.start()
        while not stop.is_set():
            # A wakeup may be for a service that is not due yet; then no query is needed.
            if self._next_due_at() <= time.monotonic():
                with measures.timed("scheduler.scheduler_loop_duration"):
                    self.run_once()
                passes += 1
            if 0 <= config.num_runs <= passes or 0 <= config.run_duration <= time.monotonic() - started:
                return
            self._wait(stop)

    def run_once(self) -> None:
        """One pass: every service that is due."""
        try:
            now, pending = self._look()
        except OperationalError as error:
            self._report(error)
            self.health.loop.ran()
            for timer in self.timers.values():
                # Marked as more than a poll, because the work of its wakeup is not done.
                timer.ran(timer.interval_s)
            return
        self.health.database.answered()
        for service in self.services:
            self.health.loop.ran()
            # Before each service, so that a long pass does not delay the heartbeat.
            heartbeat = self.timers[self.heartbeat.name]
            if heartbeat.is_due() or (pending is not None and heartbeat.is_due_soon()):
                self._run(self.heartbeat, now)
            timer = self.timers[service.name]
            if pending is not None and service.name in self.conditions and timer.is_due_soon() and timer.can_skip():
                if service.name not in pending or self._is_left_to_listener(service, timer):
                    service.skipped(now)
                    timer.skip()
                    continue
                timer.wake()
            if timer.is_due():
                self._run(service, now)

    def wake(self, tokens: Iterable[str]) -> None:
        """Make due the services that declare the kinds of these wakeups. scheduler/messaging/wakeups.py lists the kinds."""
        for token in tokens:
            kind, _, key = token.partition(":")
            for service in self.services:
                if kind in service.wakeups:
                    service.woken(kind, key)
                    self.timers[service.name].wake()

    def close(self) -> None:
        """End the services, then leave the registry."""
        for service in self.services:
            service.close()
        self._wakeups.close()
        self._guarded(self.heartbeat.close)
        self.engine.dispose()

    def _is_left_to_listener(self, service: BaseService, timer: Timer) -> bool:
        return service.is_shared and self._wakeups.another_listens and timer.can_skip(LONGEST_SHARED_SKIP_S)

    def _look(self) -> tuple[datetime, frozenset[str] | None]:
        """The time by the database's clock, and the services with pending work, or None if no service polls."""
        polled = [name for name in self.conditions if self.timers[name].is_due_soon() and self.timers[name].can_skip()]
        if not any(self.timers[name].is_due() for name in polled):
            return database.read(self.engine, clock.now), None
        # After the end of a run, only those are asked that may start another one.
        asked = STARTERS if set(polled) <= set(STARTERS) else tuple(self.conditions)
        return database.read(self.engine, pending_work.look, self.settings, {name: self.conditions[name] for name in asked})

    def _run(self, service: BaseService, now: datetime) -> None:
        result = self._guarded(lambda: service.run(now))
        for level, message in result.log:
            log.log(level, "%s", message)
        for name in result.services:
            self.timers[name].wake()
        self.wake(f"run:{run}" for run in result.runs)
        self.timers[service.name].ran(result.again_in_s)
        for name in result.if_pending:
            self.timers[name].offer()

    def _wait(self, stop: threading.Event) -> None:
        now = time.monotonic()
        # The wakeups of other kinds are read meanwhile.
        paused_s = max(service.wakeups_paused_until for service in self.services if QUEUE in service.wakeups) - now
        pause_s = min(self._next_due_at() - now, paused_s if paused_s > 0 else math.inf)
        if pause_s <= 0:
            return
        if self.health.database.since is not None:
            # Another scheduler may reach it, and act on the wakeups.
            self._wakeups.leave()
            stop.wait(pause_s)
            return
        tokens = self._wakeups.wait(pause_s, queue=paused_s <= 0)
        if tokens is None:  # the broker does not answer: poll
            self.health.broker.failed("Redis does not answer; messages of queued tasks are sent once it does.")
            stop.wait(min(pause_s, self.settings.scheduler.scheduler_idle_sleep_time))
            return
        if problems := self.service(Rescue).brokers.problems():
            self.health.broker.failed(str(problems[0]))
        else:
            self.health.broker.answered()
        self.wake(tokens)

    def _next_due_at(self) -> float:
        return min(timer.due_at for timer in self.timers.values())

    def _is_running(self) -> bool:
        """Whether the loop runs. The claims of a hung scheduler on DAG files and notices must expire."""
        return time.monotonic() - self.health.loop.at < HANGS_S

    def _guarded(self, run: Callable[[], Result | None]) -> Result:
        """Run a function of a service, and log its error; the loop and the other services continue."""
        try:
            return run() or Result()
        except Exception as error:
            if isinstance(error, OperationalError) or (
                isinstance(error, ProgrammingError) and getattr(error.orig, "pgcode", None) == sqlstates.NO_RIGHT
            ):
                self._report(error)
            else:
                log.exception("A service failed and will run again; the other services continue")
        return Result()

    def _report(self, error: DBAPIError) -> None:
        meaning = str(database.translate(error))
        self.health.database.failed(meaning)
        log.warning("%s", meaning)
