"""The loop of one scheduler: it turns the services, woken by the doorbell or a slow poll, until it is told to stop.

Any number of schedulers turn at once. None keeps state: kill one at any line and the others go on.
"""

import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from scheduler.dagfiles import process_tree
from scheduler.dagfiles.supervise import DagFileManager
from scheduler.exceptions import CredentialsError, UnreachableError
from scheduler.loop import scheduler_health
from scheduler.loop.turns import Duties, Turns
from scheduler.messaging import wakeups
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import hardening, role
from scheduler.process.pidfile import Pidfile
from scheduler.settings import Settings
from scheduler.store.dags import schedules
from scheduler.store.db import database, migrate, sqlstates
from scheduler.store.queries import events
from scheduler.store.upkeep import pending_work, processes
from scheduler.store.upkeep.heartbeats import Renewal
from scheduler.store.upkeep.settings_drift import SettingsDrift

log = logging.getLogger("paceline.scheduler")

R = TypeVar("R")

#: Seconds after which a loop that does not turn hangs. A service that waits for a broker, again and again, turns sooner.
HANGS_S = 60.0


def run(settings: Settings, *, name: str | None = None) -> int:
    """Be a scheduler until SIGTERM, SIGINT, num_runs or run_duration; the exit code."""
    role.prepare(settings.database_url)
    hardening.forget()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    process_tree.become_reaper()
    engine = database.create(settings, application="paceline scheduler", by_index=True)
    database.wait(engine, log.warning)
    migrate.check(engine)
    try:
        wakeups.check(settings)
    except CredentialsError:
        raise
    except UnreachableError as error:
        # Deciding needs the database only; what is queued meanwhile is sent once the broker is there.
        log.warning("%s", error)
    with role.running("scheduler", settings.run_folder) as process:
        loop = SchedulerLoop(engine, settings, name=name, pidfile=process.pidfile)
        process.ending.callback(loop.close)
        files = DagFileManager(engine, settings, loop.scheduler_id, wakeups=Wakeups(settings))
        loop.on_new_id = files.work_as
        files.start()
        process.ending.callback(files.stop)
        health = loop.vitals.health(lambda: loop.scheduler_id, files.complaint, loop.settings_drift)
        process.serve_health(health, settings.scheduler.health_address, settings.scheduler.health_port)
        log.info("%s decides; DAG files from %s", loop.scheduler_id, settings.dags_folder)
        loop.run(process.stop)
    log.info("%s stopped", loop.scheduler_id)
    return 0


class SchedulerLoop:
    """The services of one scheduler and when each is due. `turn` is what tests call; `run` repeats it."""

    def __init__(self, engine: Engine, settings: Settings, *, name: str | None = None, pidfile: Pidfile | None = None) -> None:
        self.engine = engine
        self.settings = settings
        self.name = name
        self.pidfile = pidfile
        self.vitals = scheduler_health.of(settings)
        #: Told when this scheduler was taken for dead and goes on under another id.
        self.on_new_id: Callable[[str], None] = lambda _: None
        self.settings_drift = SettingsDrift(engine, settings, log.warning, settings.scheduler.scheduler_health_check_threshold)
        self.scheduler_id = self._register()
        self.turns = Turns(engine, settings, self.scheduler_id)
        self._wakeups = Wakeups(settings)
        config = settings.scheduler
        self._renewal = Renewal(
            settings, process_id=lambda: self.scheduler_id, interval_s=config.scheduler_heartbeat_sec,
            timeout_s=config.scheduler_health_check_threshold, application="paceline scheduler", wanted=self._turns,
            renewed=lambda *_: self.vitals.heartbeat.beat(),
        )  # fmt: skip

    @property
    def duties(self) -> Duties:
        return self.turns.duties

    def run(self, stop: threading.Event) -> None:
        """Turn until `stop`, num_runs or run_duration; an error ends one turn of one service, never the loop."""
        config = self.settings.scheduler
        started, turns = time.monotonic(), 0
        self._renewal.start()
        while not stop.is_set():
            # What was rung for may have to wait; then there is nothing to ask the database.
            if self.duties.next_due_at() <= time.monotonic():
                self.turn()
                turns += 1
            if 0 <= config.num_runs <= turns or 0 <= config.run_duration <= time.monotonic() - started:
                return
            self._wait(stop)

    def turn(self) -> None:
        """Every service that is due, once, in the order in which their work flows."""
        named = self.turns.all()
        looks = any(duty.is_due() and duty.only_looks() for name, duty, _ in named if name in pending_work.QUESTIONS)
        try:
            found = pending_work.look(self.engine, self.settings) if looks else None
            now = found.now if found is not None else _clock(self.engine)
        except OperationalError as error:
            self._say(error)
            self.vitals.loop.beat()
            for duty in self.duties.all():
                # Not by its interval only: what it was rung for is not done.
                duty.done(duty.interval_s)
            return
        self.vitals.database.answered()
        for name, duty, service in named:
            self.vitals.loop.beat()
            # Before each of them: a service with much to do must not keep this scheduler from showing that it lives.
            if self.duties.heartbeat.is_due() or (found is not None and self.duties.heartbeat.is_near()):
                self.duties.heartbeat.done(self._guarded(self._beat, now))
            if found is not None and name in pending_work.QUESTIONS and duty.is_near() and duty.only_looks():
                if name not in found.services:
                    self.turns.rest(name, duty, now)
                    continue
                duty.due_at = 0.0
            if duty.is_due():
                duty.done(self._guarded(service, now))

    def close(self) -> None:
        """Say goodbye, so that nobody waits for this scheduler's signs of life."""
        self._renewal.end()
        self.turns.close()
        self._guarded(lambda _: processes.stop(self.engine, self.scheduler_id), None)
        self.engine.dispose()

    def _wait(self, stop: threading.Event) -> None:
        now = time.monotonic()
        deaf_s = self.turns.queue_listens_at - now
        pause_s = min(self.duties.next_due_at() - now, deaf_s if deaf_s > 0 else math.inf)
        if pause_s <= 0:
            return
        tokens = self._wakeups.wait(pause_s, queue=deaf_s <= 0)
        if tokens is None:  # the broker is away: poll
            self.vitals.broker.failed("Redis does not answer; what is queued is sent once it does.")
            stop.wait(min(pause_s, self.settings.scheduler.scheduler_idle_sleep_time))
            return
        self.vitals.broker.answered()
        self.turns.wake(tokens)

    def _beat(self, now: datetime) -> None:
        if not self._is_registered():
            log.warning("%s was taken for dead and registers anew", self.scheduler_id)
            self.scheduler_id = self._register()
            self.turns.work_as(self.scheduler_id)
            self.on_new_id(self.scheduler_id)
        self.settings_drift.look(self.scheduler_id)

    def _is_registered(self) -> bool:
        if self._renewal.is_alive():
            return not self._renewal.is_refused(self.scheduler_id)
        registered = processes.heartbeat(self.engine, self.scheduler_id)
        self.vitals.heartbeat.beat()
        return registered

    def _turns(self) -> bool:
        """Whether the loop turns. One that hangs for good must not keep the DAG files and notices that it has claimed."""
        return time.monotonic() - self.vitals.loop.at < HANGS_S

    def _guarded(self, service: Callable[[R], float | None], argument: R) -> float | None:
        try:
            return service(argument)
        except OperationalError as error:
            self._say(error)
        except ProgrammingError as error:
            if getattr(error.orig, "pgcode", None) != sqlstates.NO_RIGHT:
                log.exception("A service failed and will be tried again; the other services go on")
                return None
            self._say(error)
        except Exception:
            log.exception("A service failed and will be tried again; the other services go on")
        return None

    def _say(self, error: DBAPIError) -> None:
        meaning = str(database.translate(error))
        self.vitals.database.failed(meaning)
        log.warning("%s", meaning)

    def _register(self) -> str:
        host = socket.gethostname()
        made = processes.register(self.engine, kind="scheduler", name=self.name or f"scheduler@{host}", host=host, pid=os.getpid())
        events.record(self.engine, self.settings.core.record_events)
        self.settings_drift.enter(made)
        if self.pidfile is not None:
            self.pidfile.note(made)
            self._guarded(self._expire, self.pidfile.take_dead())
        return made

    def _expire(self, dead: list[str]) -> None:
        if dead:
            processes.expire(self.engine, dead, why="is gone from this machine")


def _clock(engine: Engine) -> datetime:
    with engine.connect() as connection:
        return schedules.clock(connection)
