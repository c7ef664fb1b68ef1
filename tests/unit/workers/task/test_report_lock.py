"""The lock that pool processes share: one process at a time has it, and a dead or stopped process blocks no other for long."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import eventually

from workers.task import report_lock
from workers.task.report_lock import ReportLock


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
        with lock.turn():
            assert not lock.others_wait()


def test_a_process_waits_for_the_one_that_has_the_lock_until_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_lock, "LONGEST_S", 60.0)
    lock = ReportLock()
    with other_process_has(lock) as pid:
        began = time.monotonic()
        threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
        with lock.turn():
            assert 0.1 <= time.monotonic() - began < 60


def test_a_process_sees_whether_others_wait_for_it() -> None:
    lock = ReportLock()
    with lock.turn():
        assert not lock.others_wait()
        pid = os.fork()
        if pid == 0:
            with lock.turn():
                os._exit(0)
        eventually(lock.others_wait)
    os.waitpid(pid, 0)

    with lock.turn():
        assert not lock.others_wait()


def test_a_process_that_waited_long_enough_goes_on_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_lock, "LONGEST_S", 0.05)
    lock = ReportLock()
    with other_process_has(lock):
        with lock.turn():
            pass
        assert not lock.others_wait()


def takes_a_turn(lock: ReportLock, alone: Path, lasts_s: float) -> int:
    """A forked process that takes a turn. It exits with 0 if no other process has a turn meanwhile."""
    pid = os.fork()
    if pid == 0:
        try:
            with lock.turn():
                alone.touch(exist_ok=False)
                until = time.monotonic() + lasts_s
                eventually(lambda: time.monotonic() >= until)
                alone.unlink()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def test_a_process_waits_longer_while_others_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each turn is shorter than LONGEST_S, and all together are longer."""
    monkeypatch.setattr(report_lock, "LONGEST_S", 2.0)
    lock = ReportLock()

    processes = [takes_a_turn(lock, tmp_path / "turn", lasts_s=0.5) for _ in range(6)]

    assert [os.waitpid(pid, 0)[1] for pid in processes] == [0] * 6


def test_a_process_whose_files_user_code_has_closed_continues_without_the_lock() -> None:
    lock = ReportLock()
    os.close(lock._file)

    with lock.turn():
        assert not lock.others_wait()
