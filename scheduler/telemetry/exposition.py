"""The page /metrics, in the text format of Prometheus: the totals of this process, and gauges from one query of the database."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from scheduler.telemetry.catalog import CATALOG, Kind, Metric
from scheduler.telemetry.recorder import Recorder, Sample
from scheduler.telemetry.totals import BUCKETS, Histogram, Labels

#: Seconds for which gauges of the database serve all scrapes, such as those of several Prometheus servers.
KEEP_S = 1.0


class Exposition(Collector):
    """Collects what one process exposes. `gauges` reads those of the database; None in processes that do not read them."""

    def __init__(
        self,
        recorder: Recorder,
        prefix: str,
        *,
        gauges: Callable[[], Sequence[Sample]] | None,
        healthy: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self._recorder = recorder
        self._prefix = prefix
        self._gauges = gauges
        self._healthy = healthy
        self._lock = threading.Lock()
        self._read: tuple[float, Sequence[Sample], bool] = (0.0, (), True)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def page(self) -> tuple[str, bytes]:
        """The content type and the body of /metrics."""
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """All metrics. Those of a database that does not answer are missing, and paceline.database_up is 0."""
        values: dict[Metric, dict[Labels, float]] = {}
        if self._recorder.totals is not None:
            values = self._recorder.totals.values()
            for metric, histograms in self._recorder.totals.histograms().items():
                yield self._histogram(metric, histograms)
        values[CATALOG["paceline.health"]] = {(part,): float(is_healthy) for part, is_healthy in self._healthy().items()}
        if self._gauges is not None:
            samples, is_up = self._database()
            values[CATALOG["paceline.database_up"]] = {(): float(is_up)}
            for metric, labels, value in samples:
                values.setdefault(metric, {})[labels] = value
        for metric, series in values.items():
            yield self._family(metric, series)

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

    def _family(self, metric: Metric, series: Mapping[Labels, float]) -> Family:
        kind: Any = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = kind(metric.prometheus(self._prefix), metric.meaning, labels=metric.labels)
        for labels, value in series.items():
            family.add_metric(labels, value)
        return family  # type: ignore[no-any-return]

    def _histogram(self, metric: Metric, series: Mapping[Labels, Histogram]) -> Family:
        family = HistogramMetricFamily(metric.prometheus(self._prefix), metric.meaning, labels=metric.labels)
        for labels, histogram in series.items():
            total, buckets = 0, []
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], histogram.counts, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric(labels, buckets, histogram.sum_s)
        return family
