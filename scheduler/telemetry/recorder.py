"""The recorder of a process: it passes each measurement to the totals for Prometheus and to StatsD, whichever is on."""

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from scheduler.settings import Settings
from scheduler.telemetry.catalog import CATALOG, Kind, Labels, Metric
from scheduler.telemetry.statsd import Statsd

#: Upper bounds, in seconds. Tasks take from milliseconds to hours.
BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
#: Label sets of one metric. More would cost the metrics server and this process more than they are worth.
MOST_SERIES = 10_000


class Totals:
    """Totals that Prometheus reads from `registry`. Any thread may write them."""

    def __init__(self, prefix: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self._prefix = prefix
        self._lock = threading.Lock()
        self._families: dict[Metric, Any] = {}
        #: By metric and the values of its labels.
        self._series: dict[Metric, dict[Labels, Any]] = {}

    def begin(self) -> None:
        """Show every counter without labels as 0: Prometheus cannot compute the rate of a counter that begins with 1."""
        for metric in CATALOG.values():
            if metric.kind is Kind.COUNTER and not metric.labels:
                self.add(metric, (), 0)

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add to a counter, set a gauge, or add a duration in seconds to a histogram."""
        series = self._one(metric, labels)
        if series is None:
            self.add(CATALOG["paceline.series_dropped"], (metric.name,), 1)
        elif metric.kind is Kind.COUNTER:
            series.inc(value)
        elif metric.kind is Kind.GAUGE:
            series.set(value)
        else:
            series.observe(value)

    def _one(self, metric: Metric, labels: Labels) -> Any:
        """The series with these labels; None if it would be one too many."""
        with self._lock:
            series = self._series.setdefault(metric, {})
            if labels not in series:
                if len(series) >= MOST_SERIES:
                    return None
                if metric not in self._families:
                    kind: Any = {Kind.COUNTER: Counter, Kind.GAUGE: Gauge, Kind.TIMER: Histogram}[metric.kind]
                    options = {"buckets": BUCKETS} if metric.kind is Kind.TIMER else {}
                    name = metric.prometheus(self._prefix)
                    self._families[metric] = kind(name, metric.meaning, metric.labels, registry=self.registry, **options)
                series[labels] = self._families[metric].labels(*labels) if metric.labels else self._families[metric]
            return series[labels]


#: The value of the label task_id if metrics.task_labels is off.
ALL_TASKS = "all"
#: A value of a gauge, or an amount to count, or a duration in seconds.
Sample = tuple[Metric, Labels, float]


class Recorder:
    """Receives the measurements of this process; see scheduler/process/measures.py."""

    def __init__(self, settings: Settings) -> None:
        config = settings.metrics
        self.totals = Totals(config.prefix) if config.prometheus else None
        self.statsd = Statsd(config.statsd, config.prefix) if config.statsd else None
        self._task_labels = config.task_labels

    def record(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Record a measurement by the name of its metric."""
        metric = CATALOG[name]
        self.add(metric, tuple(labels[label] for label in metric.labels), value)

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        """Record one sample of any kind."""
        if not self._task_labels:
            labels = self._without_task(metric, labels)
        if self.statsd is not None and metric.dotted:
            self.statsd.send(metric, labels, value)
        if self.totals is not None:
            self.totals.add(metric, labels, value)

    def summed(self, samples: Iterable[Sample]) -> list[Sample]:
        """Gauges of the database in the form that the settings require: without task labels, those of one DAG are added up."""
        if self._task_labels:
            return list(samples)
        sums: dict[tuple[Metric, Labels], float] = {}
        for metric, labels, value in samples:
            key = metric, self._without_task(metric, labels)
            sums[key] = sums.get(key, 0.0) + value
        return [(metric, labels, value) for (metric, labels), value in sums.items()]

    def flush(self) -> None:
        if self.statsd is None:
            return
        self.statsd.flush()
        dropped, self.statsd.dropped = self.statsd.dropped, 0
        if dropped and self.totals is not None:
            self.totals.add(CATALOG["paceline.statsd_dropped"], (), dropped)

    @staticmethod
    def _without_task(metric: Metric, labels: Labels) -> Labels:
        if "task_id" not in metric.labels:
            return labels
        return tuple(ALL_TASKS if name == "task_id" else value for name, value in zip(metric.labels, labels, strict=True))
