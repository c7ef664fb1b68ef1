"""The Celery worker. Its pool processes run tasks with workers/task/execute.py."""

import gc
import multiprocessing.process
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from billiard.process import current_process
from celery import Celery, signals
from celery.apps.worker import Worker as CeleryWorker
from celery.concurrency.prefork import TaskPool
from celery.worker import control
from celery.worker import state as celery_state
from sqlalchemy import Engine

from scheduler.dagfiles import load
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.environments import Environments
from scheduler.dagfiles.loaded_versions import LoadedVersions
from scheduler.messaging.publisher import TASK_NAME, Publisher, celery_app, consumed_queues
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import hardening, role
from scheduler.process.hardening import die_with_parent
from scheduler.process.health import Complaint, Health
from scheduler.settings import Settings
from scheduler.store.upkeep.processes import Registration
from scheduler.store.worker.hot_path import HotPath
from workers.celery_worker import message_filter, remote_control, strategy
from workers.celery_worker.intake import Intake
from workers.process import log_copies, logs, secrets_backend, startup
from workers.process.guard import Guard
from workers.process.logs import worker_log
from workers.spark.applications.tracking import Reaper
from workers.supervision.connection_tests import ConnectionTests
from workers.supervision.descendants import Orphans
from workers.supervision.heartbeat import HeartbeatThread, Watchdog
from workers.supervision.pooler_process import PoolerProcess
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import InPlaceEvents, InPlaceSeries
from workers.supervision.task_killer import TaskKiller
from workers.supervision.task_stopper import TaskStopper
from workers.tables.server import CatalogServer
from workers.task import execute
from workers.task.elsewhere import Elsewhere
from workers.task.execute import TryRunner
from workers.task.follow import DatabaseStore, Follower
from workers.task.report_lock import ReportLock

TICK_S = 0.2
#: Seconds without a tick of the event loop, while the broker answers, until it is unhealthy. Reconnecting takes some of them.
LOOP_SILENT_S = 15.0


def run(settings: Settings, queues: Sequence[str], concurrency: int, name: str | None = None) -> int:
    """Run a worker until it is stopped, and return the exit code. CredentialsError and SchemaError if it cannot start.

    The default name consists of the host name and the process ID.
    """
    settings = settings.as_worker()
    role.prepare(settings.database_url)
    logs.to_stderr(settings.logs.format, role="worker")
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    environment = os.environ.copy()
    # The heartbeat has its own connection, and little else needs one.
    engine = startup.ready(settings, application="paceline worker", keep=0)
    with role.running("worker", settings.run_folder) as process:
        ending = process.ending
        worker = build(
            settings, name=name, queues=queues, concurrency=concurrency, engine=engine, process=process, environment=environment
        )
        _share_memory()
        worker.killer.start()
        ending.callback(worker.killer.end)
        if worker.pooler is not None:
            worker.pooler.start()
            ending.callback(worker.pooler.end)
        worker_id = worker.heartbeat.registration.enter()
        worker.heartbeat.start()
        ending.callback(worker.heartbeat.finish)
        if worker.catalog is not None:
            worker.catalog.start()
            ending.callback(worker.catalog.end)
        process.serve_health(worker.health, settings.worker.health_address, settings.worker.health_port)
        worker_log.info("worker %s takes %d tasks at once from %s", worker_id, concurrency, ", ".join(queues))
        reaper = Reaper(engine, queues, settings, stopping=lambda: worker.stopper.draining)
        reaper.start()
        ending.callback(reaper.end)
        worker.stopper.start()
        ending.callback(worker.stopper.end)
        copies = log_copies.started(settings, lambda: [task.log for task in worker.running_tasks.running()])
        if copies is not None:
            ending.callback(copies.end)
        worker.start()
    worker_log.info("worker %s has stopped", worker_id)
    if worker.watchdog.restarts:
        _start_again(environment)
    return int(worker.exitcode or 0)


def _start_again(environment: Mapping[str, str]) -> NoReturn:
    """Execute the same command in the same process."""
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


def build(
    settings: Settings, *, name: str, queues: Sequence[str], concurrency: int, engine: Engine, process: role.Role,
    environment: Mapping[str, str],
) -> "Worker":  # fmt: skip
    """Create a worker that is not started or registered yet. Removes secrets from os.environ, so that user code cannot read
    them.
    """
    load.preload()
    load.configure(settings.core.default_timezone, airflow_imports=settings.core.airflow_imports)
    os.environ["PACELINE_HOME"] = str(settings.home)
    secrets_backend.take_environment()
    hardening.forget()
    app = celery_app(settings)
    message_filter.guard(app)
    app.conf.update(
        task_queues=consumed_queues(queues),
        # A prefetched message would wait here behind a long task while another worker is free.
        worker_disable_prefetch=True,
        worker_disable_rate_limits=True,
    )
    running_tasks = RunningTasks(concurrency)
    host = socket.gethostname()
    registration = Registration(
        engine, settings, kind="worker", name=f"{name}@{host}", silent_s=settings.worker.heartbeat_timeout, log=worker_log,
        pidfile=process.pidfile, queues=queues, concurrency=concurrency,
    )  # fmt: skip
    events, pooler = InPlaceEvents(), PoolerProcess(settings) if settings.worker.connections else None
    heartbeat = HeartbeatThread(engine, running_tasks, registration, settings, None if pooler is None else pooler.address)
    watchdog = Watchdog(settings, tuple(queues), concurrency)
    _add_task(app, settings, running_tasks, heartbeat, events=events, pooler=pooler)
    with warnings.catch_warnings():
        # The user may run it as root. Celery warns because pickled messages could run code; these are JSON.
        warnings.filterwarnings("ignore", message="(?s).*superuser privileges.*")
        worker = Worker(app=app, running_tasks=running_tasks, heartbeat=heartbeat, watchdog=watchdog, settings=settings,
                        events=events, pooler=pooler, process=process, environment=environment, hostname=f"{name}@{host}",
                        intake=Intake(settings, queues, concurrency) if len(settings.broker_urls) > 1 else None,
                        concurrency=concurrency, queues=list(queues))  # fmt: skip
    heartbeat.watch(
        stopper=worker.stopper, watchdog=watchdog, orphans=Orphans(), pool=worker.own_pids,
        connection_tests=ConnectionTests(engine, settings, queues=list(queues), worker=f"{name}@{host}"),
    )  # fmt: skip
    return worker


class Pool(TaskPool):  # type: ignore[misc]
    """Celery's prefork pool. A pool process that dies during its start is replaced like any other."""

    def on_start(self) -> None:
        """Fork the pool processes."""
        _share_memory()
        super().on_start()

    def did_start_ok(self) -> bool:
        """Replace dead pool processes. Celery would end the worker if one died before the event loop started."""
        self.maintain_pool()
        return True


class Worker(CeleryWorker):  # type: ignore[misc]
    """Celery's worker with Paceline's signal handlers and shutdown. It does not change the logging configuration."""

    def __init__(
        self, *, running_tasks: RunningTasks, heartbeat: HeartbeatThread, watchdog: Watchdog, settings: Settings,
        events: InPlaceEvents, pooler: PoolerProcess | None, process: role.Role, environment: Mapping[str, str],
        intake: Intake | None, **options: Any,
    ) -> None:  # fmt: skip
        self.heartbeat = heartbeat
        self.watchdog = watchdog
        self.running_tasks = running_tasks
        self.in_place_events = events
        self._intake = intake
        self.pooler = pooler
        self.killer = TaskKiller(running_tasks)
        self.catalog = CatalogServer(settings, os.environ) if settings.tables.warehouse else None
        self._process, self._environment = process, environment
        self._draining, wake = os.pipe()
        self.stopper = TaskStopper(
            running_tasks, grace_s=settings.worker.grace_sec, pool=self.pool_pids, on_abort=heartbeat.abandon,
            on_drain=lambda: os.write(wake, b"x"), leave=self._leave,
        )  # fmt: skip
        signals.setup_logging.connect(_leave_logging_alone, weak=False)
        # Heartbeats to Flower stay on: without them Flower could not enable task events.
        control.Panel.data = remote_control.commands(self.stopper.drain)
        super().__init__(pool_cls=Pool, quiet=True, without_gossip=True, without_mingle=True, **options)

    def install_platform_tweaks(self, worker: Any) -> None:
        """Install signal handlers: SIGTERM and SIGINT drain the worker. A second one, or SIGQUIT, ends it at once."""
        for number in role.NUMBERS:
            signal.signal(number, lambda *_: self.stopper.drain())
        signal.signal(signal.SIGQUIT, lambda *_: self.stopper.abort())
        if self._process.stop.is_set():  # a stop signal arrived before this
            self.stopper.drain()

    def register_with_event_loop(self, hub: Any) -> None:
        super().register_with_event_loop(hub)
        self.watchdog.has_listened = True
        hub.call_repeatedly(TICK_S, self._tick)
        hub.add_reader(self.in_place_events.reader, lambda: strategy.send_in_place(self.in_place_events.read()))
        hub.add_reader(self._draining, self._drain)
        if self._intake is not None:
            self._intake.attach(hub, self.consumer)

    @property
    def health(self) -> Health:
        """The health of the worker. A missing broker only degrades it: running tasks continue, and the worker reconnects."""
        vital: dict[str, Complaint] = {
            "heartbeat": self.heartbeat.health,
            "database": self.heartbeat.database,
            "task_stopper": self.stopper.health,
            "event_loop": self._loop_complaint,
            "messages": self.watchdog.complaint,
        }
        other: dict[str, Complaint] = {"broker": self.watchdog.broker, "settings": self.heartbeat.registration.settings_drift}
        return Health("worker", lambda: self.heartbeat.worker_id, vital, other)

    def _loop_complaint(self, now: float) -> str | None:
        silent_s = now - self.stopper.loop_seen_at
        # While the broker is unreachable, the loop only waits for it.
        if silent_s <= LOOP_SILENT_S or self.watchdog.is_cut_off:
            return None
        return f"Its event loop has not run for {silent_s:.0f} s."

    def pool_pids(self) -> Collection[int]:
        """Return the process IDs of the pool processes."""
        pool = getattr(self.pool, "_pool", None)
        return [child.pid for child in list(pool._pool)] if pool is not None else []

    def own_pids(self) -> Collection[int]:
        """Return the process IDs of the worker's own children, which belong to no task."""
        others = (self.killer.pid, *(None if part is None else part.pid for part in (self.catalog, self.pooler)))
        return [*self.pool_pids(), *(pid for pid in others if pid is not None)]

    def _leave(self) -> NoReturn:
        """End the process at once, or restart it if the watchdog wants it."""
        self.killer.end()
        if self.pooler is not None:
            self.pooler.end()
        if self.watchdog.restarts:
            _start_again(self._environment)
        os._exit(1)

    def _drain(self) -> None:
        """Take no more messages, without waiting for the next tick."""
        os.read(self._draining, 1)
        self._tick()

    def _tick(self) -> None:
        self.stopper.loop_seen_at = time.monotonic()
        # The pool detects the end of a process when its files close, which can be before the process can be reaped. It would
        # check again only seconds later.
        self.pool.maintain_pool()
        if self.pooler is not None:
            self.pooler.keep()
        self.running_tasks.events = strategy.sends_task_events(self.consumer.event_dispatcher)
        if self.stopper.draining:
            if self.consumer.task_consumer is not None:
                if self._intake is not None:
                    self._intake.stop(self.consumer)
                self.consumer.task_consumer.cancel()
            if not celery_state.reserved_requests:
                celery_state.should_stop = 0


def _add_task(
    app: Celery, settings: Settings, running_tasks: RunningTasks, heartbeat: HeartbeatThread, *, events: InPlaceEvents,
    pooler: PoolerProcess | None,
) -> None:  # fmt: skip
    lock, worker, main = ReportLock(), os.getpid(), multiprocessing.process.current_process()

    def prepare(**_: Any) -> None:
        # Celery has the kernel end this process with its worker, which may have ended before that.
        die_with_parent(worker)
        # The pool marks its processes as daemons, to which multiprocessing allows no children.
        multiprocessing.process._current_process = main  # type: ignore[attr-defined]
        runner = _try_runner(settings, running_tasks, events, lock, None if pooler is None else pooler.address)
        execute.executes_with(runner.run, runner.must_be_replaced)

    signals.worker_process_init.connect(prepare, weak=False)
    signals.worker_process_shutdown.connect(lambda **_: execute.close(), weak=False)
    request = strategy.request_class(heartbeat.child_died, events.read, running_tasks.step)
    strategy_path = f"{strategy.__name__}:strategy"
    app.task(name=TASK_NAME, shared=False, Strategy=strategy_path, Request=request, ignore_result=True)(execute.run)


def _try_runner(
    settings: Settings, running_tasks: RunningTasks, events: InPlaceEvents, lock: ReportLock, pooler: str | None
) -> TryRunner:
    place = current_process().index
    slot = running_tasks.slot(place)
    slot.clear()
    hot = HotPath(settings, slot.worker_id, place, pooler)
    enabled, aging = settings.scheduler.schedule_after_task_execution, settings.scheduler.priority_aging > 0
    follower = Follower(hot, Publisher(settings), Wakeups(settings), enabled=enabled, aging=aging)
    store = DatabaseStore(settings, hot, follower, lock=lock)
    contents = StoredContents(lambda work: store.patient(lambda: work(hot)), settings.bundles.code_url)
    cache = BundleCache.of(settings, contents)
    elsewhere = Elsewhere(settings, place, cache, Environments.of(settings)) if settings.bundles.install_requirements else None
    return TryRunner(
        settings=settings,
        logs_folder=settings.logs_folder,
        store=store,
        files=LoadedVersions(settings.dags_folder, cache),
        slot=slot,
        guard=Guard(own_process=True),
        log=logs.TryLog(
            json_lines=settings.logs.format == "json",
            closed=None if settings.logs.url is None else log_copies.Notes(settings, os.getppid()).add,
        ),
        series=InPlaceSeries(
            slot, seconds=settings.worker.in_place_seconds, max_tasks=settings.worker.max_tasks_per_child, events=events
        ),
        elsewhere=elsewhere,
    )


def _share_memory() -> None:
    """Before a fork: what is in memory now stays shared, since no collection of garbage writes to it in either process."""
    gc.collect()
    gc.freeze()


def _leave_logging_alone(**_: Any) -> None:
    """Do nothing: Celery configures logging only if this signal has no receiver."""
