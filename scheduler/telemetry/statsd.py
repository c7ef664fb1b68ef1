"""Sends metrics to a StatsD server in dotted names, as datagrams over UDP or a Unix socket.

Only `flush`, which a thread of its own calls, may wait for the server, and then not for long. All else adds to a bounded list.
The clients on PyPI either have no Unix datagrams (statsd) or send tags and metrics of their own (datadog).
"""

import contextlib
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable

from scheduler.telemetry.catalog import Kind, Labels, Metric

#: Largest datagram in bytes: one packet of any network, and one write to a Unix socket.
UDP_BYTES, UNIX_BYTES = 1400, 8192
#: Datagrams that wait at most; older ones are dropped. Series whose names are remembered.
MOST_WAITING, MOST_KNOWN = 2000, 20_000
#: Seconds that one datagram may take; and a pause after some of them, so that a burst does not overflow the server's buffer.
SEND_S, BURST, PAUSE_S = 0.05, 32, 0.002
#: Characters that Airflow allows in a name. A colon or a bar would end it.
NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_.\-/]")
TYPES = {Kind.COUNTER: "c", Kind.GAUGE: "g", Kind.TIMER: "ms"}


class Statsd:
    """A StatsD server. Lines wait until `flush`. Datagrams that the server does not take are dropped and counted."""

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
