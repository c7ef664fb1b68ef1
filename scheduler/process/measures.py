"""The counters and timers of a process. A measurement does nothing unless the process has a recorder.

The names and labels are those of scheduler/telemetry/catalog.py. The processes that run tasks have no recorder: metrics of tasks
are read from their events later.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


class Recorder(Protocol):
    """Receives the measurements of this process."""

    def record(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Record an amount to count, a duration in seconds or the value of a gauge. It may not block, or raise an error."""


_recorder: Recorder | None = None


def record_with(recorder: Recorder | None) -> None:
    """Use a recorder in this process; None turns measurements off. Forked children have none."""
    global _recorder  # noqa: PLW0603 - one for each process
    _recorder = recorder


def count(name: str, amount: float = 1, /, **labels: str) -> None:
    """Add to a counter of the catalog."""
    if _recorder is not None:
        _recorder.record(name, labels, amount)


def observe(name: str, seconds: float, /, **labels: str) -> None:
    """Add a duration to a timer of the catalog."""
    if _recorder is not None:
        _recorder.record(name, labels, seconds)


def gauge(name: str, value: float, /, **labels: str) -> None:
    """Set a gauge of the catalog."""
    if _recorder is not None:
        _recorder.record(name, labels, value)


@contextmanager
def timed(name: str, /, **labels: str) -> Iterator[None]:
    """Measure the duration of a block, also if it fails."""
    if _recorder is None:
        yield
        return
    started = time.monotonic()
    try:
        yield
    finally:
        observe(name, time.monotonic() - started, **labels)


os.register_at_fork(after_in_child=lambda: record_with(None))
