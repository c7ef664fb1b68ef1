"""The totals of one process since its start: counters, gauges and histograms, by metric and label values."""

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.telemetry.catalog import CATALOG, Kind, Metric

#: Upper bounds, in seconds. Tasks take from milliseconds to hours.
BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
#: Label sets of one metric. More would cost the metrics server and this process more than they are worth.
MOST_SERIES = 10_000
Labels = tuple[str, ...]


@dataclass(slots=True)
class Histogram:
    """The number of durations in each bucket, the last without a bound, and their sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum_s += seconds


class Totals:
    """Totals that Prometheus reads. Any thread may write them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Metric, dict[Labels, float]] = {}
        self._histograms: dict[Metric, dict[Labels, Histogram]] = {}

    def begin(self) -> None:
        """Show every counter without labels as 0: Prometheus cannot compute the rate of a counter that begins with 1."""
        for metric in CATALOG.values():
            if metric.kind is Kind.COUNTER and not metric.labels:
                self.count(metric, (), 0)

    def count(self, metric: Metric, labels: Labels, amount: float) -> None:
        with self._lock:
            series = self._values.setdefault(metric, {})
            if self._has_room(metric, series, labels):
                series[labels] = series.get(labels, 0.0) + amount

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        with self._lock:
            series = self._values.setdefault(metric, {})
            if self._has_room(metric, series, labels):
                series[labels] = value

    def observe(self, metric: Metric, labels: Labels, seconds: float) -> None:
        with self._lock:
            series = self._histograms.setdefault(metric, {})
            if self._has_room(metric, series, labels):
                histogram = series.get(labels)
                if histogram is None:
                    histogram = series[labels] = Histogram()
                histogram.add(seconds)

    def values(self) -> dict[Metric, dict[Labels, float]]:
        """Copies of all counters and gauges, by metric."""
        with self._lock:
            return {metric: dict(series) for metric, series in self._values.items()}

    def histograms(self) -> dict[Metric, dict[Labels, Histogram]]:
        """Copies of all histograms, by metric."""
        with self._lock:
            return {
                metric: {labels: Histogram(list(histogram.counts), histogram.sum_s) for labels, histogram in series.items()}
                for metric, series in self._histograms.items()
            }

    def _has_room(self, metric: Metric, series: Mapping[Labels, object], labels: Labels) -> bool:
        if labels in series or len(series) < MOST_SERIES:
            return True
        dropped = self._values.setdefault(CATALOG["paceline.series_dropped"], {})
        dropped[metric.name,] = dropped.get((metric.name,), 0.0) + 1
        return False
