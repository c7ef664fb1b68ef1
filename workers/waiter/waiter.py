"""The waiter: an asyncio process that awaits the triggers of deferred tasks, a thousand at once.

It has no state of its own. If a waiter ends, another one starts its triggers again. If a trigger runs twice, the first that fires
wakes the task.
"""

import asyncio
import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.authoring.triggers import Counts, Target
from scheduler.dagfiles import load
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.messaging.wakeups import WAITERS_KEY, Wakeups
from scheduler.process import fault_points, hardening, measures, role
from scheduler.process.health import Complaint, Health, ServerHealth, StepHealth
from scheduler.process.pidfile import Pidfile
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db import clock, database
from scheduler.store.db.database import transact
from scheduler.store.db.rows import EngineReader
from scheduler.store.moves.fire import Fired, fire
from scheduler.store.upkeep.heartbeats import Listener, Renewal
from scheduler.store.upkeep.processes import Registration
from scheduler.store.worker import deferrals, external_runs
from scheduler.store.worker.deferrals import Awaited
from workers.process import logs, secrets_backend, startup
from workers.waiter.triggers import OtherRuns, Triggers

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("paceline.waiter")

#: Maximum number of triggers that are claimed, or written after they fired, in one transaction.
BATCH = 500
#: Seconds between two polls, and so the cost of a lost wakeup.
POLL_S = 1.0
ANSWER_S = 1.0
PAUSE_S = 1.0
#: Seconds without an iteration of the event loop after which a trigger is blocking it.
BLOCKED_S = 1.0


def run(settings: Settings, *, name: str | None = None) -> int:
    """Run a waiter until SIGTERM or SIGINT, and return the exit code. CredentialsError and SchemaError if it cannot start."""
    settings = settings.as_worker()
    role.prepare(settings.database_url)
    secrets_backend.take_environment()
    hardening.forget()
    logs.to_stderr(settings.logs.format, role="waiter")
    load.configure(settings.core.default_timezone, airflow_imports=settings.core.airflow_imports)
    engine = startup.ready(settings, application="paceline waiter")
    with role.running("waiter", settings.run_folder) as process:
        waiter = Waiter(engine, settings, name=name, pidfile=process.pidfile)
        process.serve_health(waiter.health, settings.waiter.health_address, settings.waiter.health_port)
        asyncio.run(_until_signalled(waiter, process.stop))
    logging.shutdown()
    # Threads that a trigger or a DAG file blocks forever must not keep the process running.
    os._exit(0)


async def _until_signalled(waiter: "Waiter", stopped_early: threading.Event) -> None:
    stop = asyncio.Event()
    for number in role.NUMBERS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if stopped_early.is_set():
        stop.set()
    await waiter.run(stop)


class Waiter(Listener):
    """Claims triggers, awaits each in its own asyncio task, and writes fired triggers in batches."""

    def __init__(self, engine: Engine, settings: Settings, *, name: str | None = None, pidfile: Pidfile | None = None) -> None:
        self._engine = engine
        self._settings = settings
        silent_s = settings.waiter.heartbeat_timeout
        self._registration = Registration(
            engine, settings, kind="waiter", name=name or f"waiter@{socket.gethostname()}", silent_s=silent_s, log=log,
            pidfile=pidfile,
        )  # fmt: skip
        self._loop = StepHealth("A trigger blocks the loop", silent_s)
        self._heartbeat = StepHealth("Its heartbeat did not reach the database", silent_s)
        self._claims = StepHealth("It has claimed no triggers", silent_s)
        self._store, self._broker = ServerHealth(), ServerHealth()
        vital: dict[str, Complaint] = {
            "loop": self._loop,
            "heartbeat": self._heartbeat,
            "claims": self._claims,
            "database": self._store,
        }
        others: dict[str, Complaint] = {"broker": self._broker, "settings": self._registration.settings_drift}
        self.health = Health("waiter", lambda: self.waiter_id, vital, others)
        self.waiter_id = self._registration.enter()
        self._registration.expire_former()
        self._other_runs = OtherRuns(self._states, self._clock())
        until_answered = database.until_answered(engine, pause_s=PAUSE_S, failed=lambda error, _: log.warning("%s", error))
        self._triggers = Triggers(
            settings, self._other_runs, BundleCache.of(settings, StoredContents.over(until_answered, settings))
        )
        self._versions = Versions()
        #: By dispatch ID: the claimed trigger, and the asyncio task that awaits it.
        self._running: dict[str, tuple[Awaited, asyncio.Task[None]]] = {}
        self._fired: list[Fired] = []
        self._something_fired = asyncio.Event()
        #: Whether the answer to the last claim was lost: this process may have claimed triggers that it does not run.
        self._is_claim_unknown = False
        self._wakeups, self._own_wakeups = Wakeups(settings), Wakeups(settings, WAITERS_KEY)
        self._database = ThreadPoolExecutor(2, thread_name_prefix="database")
        self._wakeup_thread = ThreadPoolExecutor(1, thread_name_prefix="wakeups")
        self._ticked_at = time.monotonic()
        limits = settings.waiter
        self._renewal = Renewal(
            settings, self, process_id=lambda: self.waiter_id, interval_s=limits.heartbeat_sec,
            timeout_s=limits.heartbeat_timeout, application="paceline waiter",
        )  # fmt: skip

    def is_wanted(self) -> bool:
        """While a trigger blocks the loop, the heartbeat must expire, so that other waiters take over."""
        return self._loop(time.monotonic()) is None

    def renewed(self, process_id: str, sent_at: float) -> None:
        self._heartbeat.ran()

    async def run(self, stop: asyncio.Event) -> None:
        """Run all duties until `stop`, then release the remaining triggers."""
        ended = threading.Event()
        threading.Thread(target=self._watch, args=(asyncio.get_running_loop(), ended), daemon=True).start()
        self._renewal.start()
        log.info("%s awaits up to %d triggers", self.waiter_id, self._settings.waiter.capacity)
        duties = [
            asyncio.create_task(self._steadily(duty), name=name)
            for name, duty in (
                ("claim", self._claim), ("fire", self._fire), ("answer", self._answer), ("beat", self._beat), ("tick", self._tick)
            )
        ]  # fmt: skip
        try:
            await stop.wait()
        finally:
            ended.set()
            self._renewal.end()
            for duty in duties:
                duty.cancel()
            self._drop(list(self._running))
            await self._give_back()
            log.info("%s stopped", self.waiter_id)

    async def _steadily(self, duty: Callable[[], Any]) -> None:
        """Repeat a duty. An error ends one iteration of it, never the waiter."""
        away = False
        while True:
            try:
                await duty()
            except DBAPIError as error:
                away = True
                if self._store.failed("PostgreSQL does not answer; fired triggers are kept until it does."):
                    log.warning("PostgreSQL does not answer (%s); trying until it does", str(error.orig).strip())
                await asyncio.sleep(PAUSE_S)
            except Exception:
                log.exception("A duty of the waiter failed and will be tried again")
                await asyncio.sleep(PAUSE_S)
            else:
                if away and self._store.answered():
                    log.info("PostgreSQL answers again")
                away = False

    async def _claim(self) -> None:
        """Claim free triggers up to the capacity, then wait for a wakeup or the next poll."""
        capacity = min(self._settings.waiter.capacity - len(self._running), BATCH)
        if capacity > 0:
            waiter = self.waiter_id
            if self._is_claim_unknown:
                known = [*self._running, *(trigger.dispatch_id for trigger in self._fired)]
                await self._transact(deferrals.release, waiter, known=known)
            self._is_claim_unknown = True
            claimed = await self._transact(deferrals.claim, waiter, limit=capacity)
            self._is_claim_unknown = False
            if waiter == self.waiter_id:  # otherwise it was declared lost in the meantime, and they are free again
                for trigger in claimed:
                    self._start(trigger)
            if len(claimed) == capacity:
                self._claims.ran()
                return
        self._claims.ran()
        tokens = await asyncio.get_running_loop().run_in_executor(self._wakeup_thread, self._own_wakeups.wait, POLL_S)
        if tokens is not None:
            self._broker.answered()
        else:
            self._broker.failed("Redis does not answer; it looks for triggers every second until it does.")
            await asyncio.sleep(POLL_S)

    async def _fire(self) -> None:
        """Write fired triggers in batches. They are kept until the database has stored them."""
        await self._something_fired.wait()
        batch = self._fired[:BATCH]
        if batch:
            moved = await self._transact(fire, batch)
            del self._fired[: len(batch)]
            if moved:
                await self._in_thread(functools.partial(self._wakeups.wake, "queue"))
                fault_points.point("fire.woken")
        if not self._fired:
            self._something_fired.clear()

    async def _answer(self) -> None:
        await asyncio.sleep(ANSWER_S)
        await self._other_runs.answer()

    async def _beat(self) -> None:
        """Register again if declared lost, and end triggers whose tasks no longer wait for them."""
        if self._renewal.is_refused(self.waiter_id):
            # Without an await between the new ID and the drop: triggers that are claimed with that ID must not be dropped.
            former, self.waiter_id = self.waiter_id, await self._in_thread(self._registration.enter)
            log.warning("waiter %s was declared lost; it continues as %s", former, self.waiter_id)
            measures.count("{job_name}_heartbeat_failure", job_name="triggererjob")
            self._drop(list(self._running))
        await self._in_thread(self._registration.compare_settings)
        self._other_runs.set_clock(await self._in_thread(self._clock))
        waiter, mine = self.waiter_id, [(trigger.ti_id, trigger.dispatch_id) for trigger, _ in self._running.values()]
        if mine:
            awaited = await self._transact(deferrals.still_awaited, waiter, mine)
            self._drop([dispatch_id for _, dispatch_id in mine if not awaited.get(dispatch_id)], awaited=awaited)
        self._measure()
        await asyncio.sleep(self._settings.waiter.heartbeat_sec)

    def _measure(self) -> None:
        host = socket.gethostname()
        measures.count("triggerer_heartbeat")
        measures.gauge("triggers.running", len(self._running), hostname=host)
        measures.gauge("triggerer.capacity_left", self._settings.waiter.capacity - len(self._running), hostname=host)

    async def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        self._loop.ran()
        await asyncio.sleep(BLOCKED_S / 10)

    def _start(self, trigger: Awaited) -> None:
        if trigger.dispatch_id not in self._running:
            name = f"{trigger.classpath} of {trigger.dag_id}.{trigger.task_id}, run {trigger.run_id}"
            self._running[trigger.dispatch_id] = (trigger, asyncio.create_task(self._wait(trigger), name=name))

    async def _wait(self, trigger: Awaited) -> None:
        fired = await self._triggers.run(trigger)
        if self._running.pop(trigger.dispatch_id, None) is not None:
            measures.count("triggers.failed" if "error" in fired.outcome else "triggers.succeeded")
            self._fired.append(fired)
            self._something_fired.set()

    def _drop(self, dispatch_ids: Sequence[str], *, awaited: Container[str] | None = None) -> None:
        """Cancel these triggers. Tasks that are not `awaited` elsewhere and not late were stopped: `on_kill` is called."""
        for dispatch_id in dispatch_ids:
            if (running := self._running.pop(dispatch_id, None)) is not None:
                trigger, waits = running
                is_late = trigger.due_at is not None and trigger.due_at <= self._other_runs.now()
                if awaited is not None and dispatch_id not in awaited and not is_late:
                    self._triggers.kill(dispatch_id)
                waits.cancel()

    async def _give_back(self) -> None:
        try:
            if self._fired:
                await self._transact(fire, self._fired)
                self._wakeups.wake("queue")
            if await self._in_thread(self._registration.leave):
                self._wakeups.wake_waiters()
        except DBAPIError as error:
            log.warning("PostgreSQL does not answer (%s); others take over once it does", str(error.orig).strip())

    async def _states(self, targets: Sequence[Target]) -> Sequence[Counts]:
        def read() -> Sequence[Counts]:
            with self._engine.connect() as connection:
                return external_runs.states(
                    EngineReader(connection), lambda version: self._versions.dag(connection, version), targets
                )

        return await self._in_thread(read)

    def _clock(self) -> datetime:
        with self._engine.connect() as connection:
            return clock.now(connection)

    async def _transact(self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._in_thread(lambda: transact(self._engine, work, *args, **kwargs))

    async def _in_thread(self, work: Callable[[], R]) -> R:
        """Return `work()`, run in a thread, so that the database never blocks the triggers."""
        return await asyncio.get_running_loop().run_in_executor(self._database, work)

    def _watch(self, loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
        """Log the name of a trigger that blocks all others. Runs in a thread."""
        logged: asyncio.Task[Any] | None = None
        while not ended.wait(BLOCKED_S / 4):
            blocked_s = time.monotonic() - self._ticked_at
            culprit = asyncio.current_task(loop) if blocked_s > BLOCKED_S else None
            if culprit is not None and culprit is not logged:
                measures.count("triggers.blocked_main_thread")
                log.error("%s blocks all other triggers (%.1f s so far): it must await, not wait", culprit.get_name(), blocked_s)
            logged = culprit
