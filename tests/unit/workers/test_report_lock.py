"""The lock that pool processes share: one process at a time has it, and a dead or stopped one keeps it from nobody for long."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workers import report_lock
from workers.report_lock import ReportLock


@contextmanager
def other_process_has(lock: ReportLock) -> Iterator[int]:
    """A forked process that holds the lock until it is killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with lock.turn():
                os.write(writer, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"x"
        yield pid
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_free_lock_is_taken_without_waiting() -> None:
    lock = ReportLock()
    for _ in range(2):
        with lock.turn() as contended:
            assert not contended


def test_a_process_waits_for_the_one_that_has_the_lock_until_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_lock, "LONGEST_S", 60.0)
    lock = ReportLock()
    with other_process_has(lock) as pid:
        threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
        with lock.turn() as contended:
            assert contended


def test_a_process_that_waited_long_enough_goes_on_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_lock, "LONGEST_S", 0.05)
    lock = ReportLock()
    with other_process_has(lock), lock.turn() as contended:
        assert contended


def test_a_process_whose_files_user_code_has_closed_goes_on_without_the_lock() -> None:
    lock = ReportLock()
    os.close(lock._file)

    with lock.turn() as contended:
        assert not contended
