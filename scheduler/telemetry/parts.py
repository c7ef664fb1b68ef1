"""The parts of telemetry in one process: the recorder, the thread that follows events or sends, and the page /metrics."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from sqlalchemy import Engine

from paceline.exceptions import SettingsError
from scheduler.process import measures
from scheduler.process.health import Health, Page
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.telemetry.catalog import CATALOG, Labels, Metric
from scheduler.telemetry.event_metrics import EventMetrics, Flusher, read_gauges
from scheduler.telemetry.follower import Follower, Observer
from scheduler.telemetry.recorder import Recorder, Sample

#: The names of the jobs of Airflow that a process of ours does.
JOBS = {"scheduler": ("schedulerjob", "dagprocessorjob"), "waiter": ("triggererjob",)}
#: Seconds for which gauges of the database serve all scrapes, such as those of several Prometheus servers.
KEEP_S = 1.0


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


class Exposition(Collector):
    """Collects what one process exposes. `gauges` reads the database; it is None in processes that do not."""

    def __init__(
        self,
        recorder: Recorder,
        prefix: str,
        *,
        gauges: Callable[[], Sequence[Sample]] | None,
        healthy: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        assert recorder.totals is not None, "metrics.prometheus is on"
        self._prefix = prefix
        self._gauges = gauges
        self._healthy = healthy
        self._lock = threading.Lock()
        self._read: tuple[float, Sequence[Sample], bool] = (0.0, (), True)
        self._registry = recorder.totals.registry
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def page(self) -> tuple[str, bytes]:
        """The content type and the body of /metrics."""
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """The gauges. Without an answer of the database its gauges are missing, and paceline.database_up is 0."""
        healthy: dict[Labels, float] = {(part,): float(is_healthy) for part, is_healthy in self._healthy().items()}
        values: dict[Metric, dict[Labels, float]] = {CATALOG["paceline.health"]: healthy}
        if self._gauges is not None:
            samples, is_up = self._database()
            values[CATALOG["paceline.database_up"]] = {(): float(is_up)}
            for metric, labels, value in samples:
                values.setdefault(metric, {})[labels] = value
        for metric, series in values.items():
            family = GaugeMetricFamily(metric.prometheus(self._prefix), metric.meaning, labels=metric.labels)
            for labels, value in series.items():
                family.add_metric(labels, value)
            yield family

    def _database(self) -> tuple[Sequence[Sample], bool]:
        # One query at a time: a database that answers slowly must not get more of them.
        with self._lock:
            at, samples, is_up = self._read
            if time.monotonic() - at > KEEP_S:
                assert self._gauges is not None
                try:
                    samples, is_up = self._gauges(), True
                except Exception:  # whatever the reason, the other metrics are served
                    samples, is_up = (), False
                self._read = time.monotonic(), samples, is_up
            return samples, is_up
