"""The parts of telemetry in one process: the recorder, the thread that follows events or sends, and the page /metrics."""

import contextlib
from collections.abc import Callable, Mapping

from sqlalchemy import Engine

from paceline.exceptions import SettingsError
from scheduler.process import measures
from scheduler.process.health import Health
from scheduler.process.health_server import Page
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.telemetry.event_metrics import EventMetrics, Flusher, read_gauges
from scheduler.telemetry.follower import Follower, Observer
from scheduler.telemetry.recorder import Recorder

#: The names of the jobs of Airflow that a process of ours does.
JOBS = {"scheduler": ("schedulerjob", "dagprocessorjob"), "waiter": ("triggererjob",)}


def start(settings: Settings, health: Health, ending: contextlib.ExitStack) -> Mapping[str, Page]:
    """Begin to observe this process and, in a scheduler, the installation, until `ending`. Returns the pages to serve.

    SettingsError if a package is missing.
    """
    is_scheduler = health.role == "scheduler"
    recorder = Recorder(settings) if settings.metrics.prometheus or settings.metrics.statsd else None
    observers = _observers(settings, recorder) if is_scheduler else []
    if recorder is not None:
        measures.record_with(recorder)
        ending.callback(measures.record_with, None)
    thread: Follower | Flusher | None = None
    if is_scheduler:
        thread = Follower(settings, observers)
    elif recorder is not None and recorder.statsd is not None:
        thread = Flusher(recorder)
    if thread is not None:
        thread.start()
        ending.callback(thread.end)
    if recorder is None:
        return {}
    for job in JOBS.get(health.role, ()):
        measures.count("{job_name}_start", job_name=job)
        ending.callback(measures.count, "{job_name}_end", job_name=job)
    if not settings.metrics.prometheus:
        return {}
    engine: Engine | None = None
    if is_scheduler:
        if recorder.totals is not None:
            recorder.totals.begin()
        engine = database.create(settings, application="paceline telemetry", pool_size=1)
        ending.callback(engine.dispose)

    def healthy() -> dict[str, bool]:
        return {name: part["status"] == "healthy" for name, part in health.report()["parts"].items()}

    return {"/metrics": _page(settings, recorder, engine, healthy=healthy)}


def start_web(settings: Settings, engine: Engine) -> Page | None:
    """Begin to measure in this web process, until it ends. Returns the page /metrics, if it is on."""
    recorder = Recorder(settings)
    measures.record_with(recorder)
    if recorder.statsd is not None:
        Flusher(recorder).start()
    if not settings.metrics.prometheus:
        return None
    return _page(settings, recorder, engine)


def _page(
    settings: Settings, recorder: Recorder, engine: Engine | None, *, healthy: Callable[[], Mapping[str, bool]] = dict
) -> Page:
    """The page /metrics of a process; with an engine, it has the gauges of the installation."""
    from scheduler.telemetry.exposition import Exposition

    gauges = None if engine is None else lambda: recorder.summed(database.transact(engine, read_gauges, settings))
    return Exposition(recorder, settings.metrics.prefix, gauges=gauges, healthy=healthy).page


def _observers(settings: Settings, recorder: Recorder | None) -> list[Observer]:
    observers: list[Observer] = [] if recorder is None else [EventMetrics(settings, recorder)]
    try:
        if settings.tracing.otlp_endpoint:
            from scheduler.telemetry.tracing import Tracing

            observers.append(Tracing(settings))
        if settings.lineage.url:
            from scheduler.telemetry.lineage import Lineage

            observers.append(Lineage(settings))
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"tracing.otlp_endpoint and lineage.url need the package {missing.name}: pip install 'paceline[telemetry]'."
        ) from None
    return observers
