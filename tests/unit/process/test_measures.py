"""Measurements of a process: nothing without a recorder, and nothing in its children."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scheduler.process import measures
from scheduler.process.measures import Recorder

OFF = """
import sys, threading
from scheduler.process import measures, role
from scheduler.settings import Settings
from scheduler.cli.processes import observe
observe(Settings())
measures.count("scheduler_heartbeat")
assert role.extensions == [] and threading.active_count() == 1
print([name for name in sys.modules if name.startswith(("prometheus_client", "scheduler.telemetry", "sqlalchemy"))])
"""


class Calls:
    """A recorder that stores its measurements."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def record(self, name: str, labels: object, value: float) -> None:
        # The duration of a block is not known.
        self.calls.append((name, labels, value >= 0 if name == "c" else value))


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    recorder: Recorder = calls
    measures.record_with(recorder)
    yield calls
    measures.record_with(None)


def test_a_measurement_reaches_the_recorder(calls: Calls) -> None:
    measures.count("a", 2, x="1")
    measures.gauge("b", 3)
    with pytest.raises(ValueError, match="no"), measures.timed("c", y="2"):
        raise ValueError("no")

    assert calls.calls == [("a", {"x": "1"}, 2), ("b", {}, 3), ("c", {"y": "2"}, True)]


def test_a_forked_child_measures_nothing(calls: Calls) -> None:
    child = os.fork()
    if child == 0:
        measures.count("a")
        os._exit(len(calls.calls))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    measures.count("a")
    assert len(calls.calls) == 1


def test_without_a_setting_nothing_is_imported_and_nothing_runs() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "[]"
