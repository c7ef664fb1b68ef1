"""The recorder of a process: it passes each measurement to Prometheus' totals and to StatsD, whichever is on."""

from collections.abc import Iterable, Mapping

from scheduler.settings import Settings
from scheduler.telemetry.catalog import CATALOG, Kind, Metric
from scheduler.telemetry.statsd import Statsd
from scheduler.telemetry.totals import Labels, Totals

#: The value of the label task_id if metrics.task_labels is off.
ALL_TASKS = "all"
#: A value of a gauge, or an amount to count, or a duration in seconds.
Sample = tuple[Metric, Labels, float]


class Recorder:
    """Receives the measurements of this process; see scheduler/process/measures.py."""

    def __init__(self, settings: Settings) -> None:
        config = settings.metrics
        self.totals = Totals() if config.prometheus else None
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
            if metric.kind is Kind.COUNTER:
                self.totals.count(metric, labels, value)
            elif metric.kind is Kind.GAUGE:
                self.totals.set(metric, labels, value)
            else:
                self.totals.observe(metric, labels, value)

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
            self.totals.count(CATALOG["paceline.statsd_dropped"], (), dropped)

    @staticmethod
    def _without_task(metric: Metric, labels: Labels) -> Labels:
        if "task_id" not in metric.labels:
            return labels
        return tuple(ALL_TASKS if name == "task_id" else value for name, value in zip(metric.labels, labels, strict=True))
