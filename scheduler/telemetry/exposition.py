"""The page /metrics, in the text format of Prometheus: the totals of this process, and gauges from one query of the database."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from scheduler.telemetry.catalog import CATALOG, Labels, Metric
from scheduler.telemetry.recorder import Recorder, Sample

#: Seconds for which gauges of the database serve all scrapes, such as those of several Prometheus servers.
KEEP_S = 1.0


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
