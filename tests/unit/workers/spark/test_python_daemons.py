"""The Python daemons of a JVM that count as running."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from support.waiting import eventually

from workers.spark.sessions.jvm_shared import is_running


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as made:
        yield made
        made.kill()


def test_one_that_waits_does_and_one_that_is_stopped_or_gone_does_not(process: "subprocess.Popen[bytes]") -> None:
    assert is_running(process.pid)

    process.send_signal(signal.SIGSTOP)
    eventually(lambda: not is_running(process.pid))

    process.kill()
    process.wait()
    assert not is_running(process.pid)


def test_a_killed_daemon_stops_counting_immediately() -> None:
    for _ in range(50):
        with subprocess.Popen(["sleep", "60"]) as process:
            os.kill(process.pid, signal.SIGKILL)

            assert not is_running(process.pid)
