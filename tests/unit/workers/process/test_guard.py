"""Changes of a task to its process, which the next task must not see."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.exceptions import TaskStopped, TaskTimeout
from workers.process.guard import Guard


@pytest.fixture
def guard() -> Iterator[Guard]:
    """Restores the root logger's handlers after the test."""
    handlers = list(logging.root.handlers)
    yield Guard()
    logging.root.handlers = handlers


def run(guard: Guard, work: Callable[[], object]) -> object:
    return guard.run(work, timeout_s=None, why_stop=lambda: None)


def test_changes_of_several_tasks_to_the_loggers_are_undone(guard: Guard) -> None:
    kept, mine = logging.NullHandler(), logging.getLogger("test.guard.mine")
    logging.root.handlers = [kept]

    for _ in range(2):

        def spoil() -> None:
            logging.root.handlers.clear()
            logging.root.handlers.append(logging.NullHandler())
            mine.setLevel(1)
            mine.propagate, mine.disabled = False, True
            logging.disable(logging.CRITICAL)

        run(guard, spoil)

        assert logging.root.handlers == [kept]
        assert (mine.level, mine.propagate, mine.disabled) == (logging.NOTSET, True, False)
        assert logging.root.manager.disable == logging.NOTSET


def test_a_logger_that_a_task_made_stays_as_that_task_left_it(guard: Guard) -> None:
    name = "test.guard.made_by_a_task"

    run(guard, lambda: logging.getLogger(name).setLevel(10))
    run(guard, lambda: logging.getLogger(name).setLevel(40))

    assert logging.getLogger(name).level == 10


def test_variables_handlers_and_folder_are_as_before(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_GUARD", "before")
    guard = Guard()
    before, folder = dict(os.environ), os.getcwd()  # noqa: PTH109
    handler = signal.getsignal(signal.SIGUSR2)

    def spoil() -> None:
        os.environ["TEST_GUARD"] = "after"
        os.environ["TEST_GUARD_NEW"] = "1"
        del os.environ["PATH"]
        os.chdir("/")
        os.umask(0)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    umask = os.umask(0o22)
    os.umask(umask)
    run(guard, spoil)

    assert dict(os.environ) == before
    assert os.getcwd() == folder  # noqa: PTH109
    assert os.umask(umask) == umask
    assert signal.getsignal(signal.SIGUSR2) == handler


@pytest.mark.parametrize("made", ["before", "after"])
def test_tasks_run_elsewhere_once_the_working_folder_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, made: str
) -> None:
    gone, other = tmp_path / "gone", tmp_path / "other"
    gone.mkdir()
    other.mkdir()
    monkeypatch.chdir(gone)
    guards = [Guard()] if made == "before" else []
    gone.rmdir()
    guards = guards or [Guard()]

    def look() -> Path:
        found = Path.cwd()
        os.chdir(other)
        return found

    assert [run(guards[0], look) for _ in range(2)] == [Path("/"), Path("/")]
    assert len(caplog.messages) == 1
    assert "its tasks start in / from now on" in caplog.text


def test_a_task_is_interrupted_by_its_timeout_and_by_a_stop(guard: Guard) -> None:
    with pytest.raises(TaskTimeout, match=r"execution_timeout of 0\.05 s"):
        guard.run(lambda: threading.Event().wait(30), timeout_s=0.05, why_stop=lambda: None)
    with pytest.raises(TaskStopped, match="because"):
        guard.run(lambda: os.kill(os.getpid(), signal.SIGTERM), timeout_s=None, why_stop=lambda: "because")
    assert guard.run(lambda: 1, timeout_s=None, why_stop=lambda: None) == 1


TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


@pytest.fixture
def timers() -> Iterator[None]:
    """Without timers during the test, such as that of its own time limit."""
    before = [signal.setitimer(timer, 0) for timer in TIMERS]
    yield
    for timer, (seconds, interval) in zip(TIMERS, before, strict=True):
        signal.setitimer(timer, seconds, interval)


@pytest.mark.usefixtures("timers")
def test_timers_and_blocked_signals_of_a_task_do_not_reach_the_next_one(guard: Guard) -> None:
    run(guard, lambda: None)
    before, asked = signal.pthread_sigmask(signal.SIG_BLOCK, ()), list[str]()

    def spoil() -> None:
        for timer in TIMERS:
            signal.setitimer(timer, 60)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
        # To this thread, since another one of the process may not block it.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    guard.run(spoil, timeout_s=None, why_stop=lambda: asked.append("for the task before") or "")

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert asked == ["for the task before"]
    assert [signal.getitimer(timer) for timer in TIMERS] == [(0, 0)] * 3


@pytest.mark.usefixtures("timers")
def test_a_timer_of_the_process_itself_stays(guard: Guard) -> None:
    signal.setitimer(signal.ITIMER_REAL, 3600)

    run(guard, lambda: None)

    assert signal.getitimer(signal.ITIMER_REAL)[0] > 3000


def test_an_alarm_belongs_to_the_code_of_a_task_without_a_timeout(guard: Guard) -> None:
    assert run(guard, lambda: signal.getsignal(signal.SIGALRM)) == signal.getsignal(signal.SIGALRM)
