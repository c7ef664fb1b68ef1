"""The recorder of a process: it passes each measurement to the totals for Prometheus and to StatsD, whichever is on."""

import contextlib
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from scheduler.settings import Settings
from scheduler.telemetry.catalog import CATALOG, Kind, Labels, Metric

#: Upper bounds, in seconds. Tasks take from milliseconds to hours.
BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
#: Label sets of one metric. More would cost the metrics server and this process more than they are worth.
MOST_SERIES = 10_000
#: The value of the label task_id if metrics.task_labels is off.
ALL_TASKS = "all"
#: A value of a gauge, or an amount to count, or a duration in seconds.
Sample = tuple[Metric, Labels, float]
#: Largest datagram in bytes: one packet of any network, and one write to a Unix socket.
UDP_BYTES, UNIX_BYTES = 1400, 8192
#: Datagrams that wait at most; older ones are dropped. Series whose names are remembered.
MOST_WAITING, MOST_KNOWN = 2000, 20_000
#: Seconds that one datagram may take; and a pause after some of them, so that a burst does not overflow the server's buffer.
SEND_S, BURST, PAUSE_S = 0.05, 32, 0.002
#: Characters that Airflow allows in a name. A colon or a bar would end it.
NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_.\-/]")
TYPES = {Kind.COUNTER: "c", Kind.GAUGE: "g", Kind.TIMER: "ms"}


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


class Statsd:
    """A StatsD server, which gets metrics in dotted names, as datagrams over UDP or a Unix socket.

    Only `flush`, which a thread of its own calls, may wait for the server, and then not for long. All else adds to a bounded list.
    Datagrams that the server does not take are dropped and counted. The clients on PyPI either have no Unix datagrams (statsd) or
    send tags and metrics of their own (datadog).
    """

    def __init__(self, address: str, prefix: str) -> None:
        self._prefix = f"{prefix}." if prefix else ""
        self._target: str | tuple[str, int]
        if address.startswith("unix://"):
            self._target, self._longest = address.removeprefix("unix://"), UNIX_BYTES
        else:
            host, _, port = address.rpartition(":")
            self._target, self._longest = (host.strip("[]"), int(port)), UDP_BYTES
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._size = 0
        self._datagrams: deque[bytes] = deque()
        #: Counts since the last flush, which need one line for each name.
        self._counts: dict[str, float] = {}
        #: The names of series, which are the same again and again.
        self._known: dict[tuple[str, Labels], list[str]] = {}
        #: Gauges that were not 0 in the last round, by name.
        self._shown: dict[str, float] = {}
        self.dropped = 0

    def send(self, metric: Metric, labels: Labels, value: float) -> None:
        """Send a count, the value of a gauge, or a duration in seconds."""
        names = self._names(metric, labels)
        with self._lock:
            if metric.kind is Kind.COUNTER:
                for name in names:
                    self._counts[name] = self._counts.get(name, 0.0) + value
                return
        value *= 1000 if metric.kind is Kind.TIMER else 1
        for name in names:
            self._put(f"{name}:{_number(value)}|{TYPES[metric.kind]}")

    def gauges(self, samples: Iterable[tuple[Metric, Labels, float]]) -> None:
        """Send a round of gauges. A gauge of the last round that is gone becomes 0, because a server keeps the last value."""
        shown = {name: value for metric, labels, value in samples for name in self._names(metric, labels)}
        for name in self._shown.keys() - shown.keys():
            self._put(f"{name}:0|g")
        for name, value in shown.items():
            if value < 0:
                self._put(f"{name}:0|g")  # a sign would change the last value
            self._put(f"{name}:{_number(value)}|g")
        self._shown = {name: value for name, value in shown.items() if value}

    def flush(self) -> None:
        """Send the waiting lines."""
        with self._lock:
            counts, self._counts = self._counts, {}
        for name, count in counts.items():
            self._put(f"{name}:{_number(count)}|c")
        with self._lock:
            self._complete()
            datagrams, self._datagrams = self._datagrams, deque()
        try:
            for number, datagram in enumerate(datagrams, 1):
                self._connected().send(datagram)
                if number % BURST == 0:
                    time.sleep(PAUSE_S)
        except OSError:  # it is away, or too slow
            self.dropped += len(datagrams) - number + 1
            self.close()

    def close(self) -> None:
        """Close the socket; the next `flush` opens another one."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _names(self, metric: Metric, labels: Labels) -> list[str]:
        key = metric.name, labels
        names = self._known.get(key)
        if names is None:
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            values = dict(zip(metric.labels, labels, strict=True))
            prefix = self._prefix if metric.is_airflow else ""
            names = [prefix + NOT_ALLOWED.sub("_", dotted.format_map(values)) for dotted in metric.dotted]
            self._known[key] = names
        return names

    def _put(self, line: str) -> None:
        data = line.encode()
        with self._lock:
            if self._size + len(data) > self._longest:
                self._complete()
            self._lines.append(data)
            self._size += len(data) + 1

    def _complete(self) -> None:
        if not self._lines:
            return
        self._datagrams.append(b"\n".join(self._lines))
        self._lines, self._size = [], 0
        if len(self._datagrams) > MOST_WAITING:
            self._datagrams.popleft()
            self.dropped += 1

    def _connected(self) -> socket.socket:
        if self._socket is None:
            family, target = socket.AF_UNIX, self._target
            if not isinstance(target, str):
                family, _, _, _, target = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]  # type: ignore[assignment]
            connected = socket.socket(family, socket.SOCK_DGRAM)
            try:
                connected.settimeout(SEND_S)
                connected.connect(target)
            except OSError:
                connected.close()
                raise
            self._socket = connected
        return self._socket


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"
