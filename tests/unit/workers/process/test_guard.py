"""Changes of a task to its process, which the next task must not see."""

import _thread
import builtins
import contextlib
import contextvars
import decimal
import gc
import locale
import logging
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.exceptions import TaskStopped, TaskTimeout
from workers.process.guard import PARTS, Guard


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


def test_every_part_of_the_process_is_as_before(guard: Guard, tmp_path: Path) -> None:
    variable = contextvars.ContextVar("variable", default="before")
    before = [part.read() for part in PARTS]
    precision = decimal.getcontext().prec

    def spoil() -> None:
        variable.set("of a task")
        decimal.getcontext().prec = 3
        decimal.DefaultContext.prec = 4
        sys.path.insert(0, str(tmp_path))
        builtins.sum = max  # type: ignore[assignment]
        warnings.simplefilter("ignore")
        socket.setdefaulttimeout(1.5)
        locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
        tempfile.tempdir = str(tmp_path)
        sys.setrecursionlimit(sys.getrecursionlimit() + 100)
        gc.disable()
        sys.excepthook = threading.excepthook = lambda *_: None
        multiprocessing.set_start_method("spawn", force=True)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        os.environ = {}  # type: ignore[assignment] # noqa: B003

    run(guard, spoil)

    assert [part.read() for part in PARTS] == before
    assert (variable.get(), decimal.getcontext().prec, sum([1, 2])) == ("before", precision, 3)
    assert guard.unfit is None


def test_a_change_that_cannot_be_restored_makes_the_process_unfit(guard: Guard) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can change its user")
    pid = os.fork()
    if pid == 0:  # which cannot become root again
        with contextlib.suppress(BaseException):
            run(guard, lambda: os.setuid(65534))
        os._exit(0 if guard.unfit == "this task changed the user, which could not be restored" else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("kind", ["thread", "raw thread", "timer", "busy executor", "queued executor"])
def test_a_thread_that_may_still_run_code_of_its_task_makes_the_process_unfit(guard: Guard, kind: str) -> None:
    release = threading.Event()
    kept: list[object] = []

    def leave() -> None:
        if kind == "thread":
            threading.Thread(target=release.wait, daemon=True).start()
        elif kind == "raw thread":
            begun = _thread.allocate_lock()
            begun.acquire()
            _thread.start_new_thread(lambda: (begun.release(), release.wait()), ())
            begun.acquire()
        elif kind == "timer":
            kept.append(threading.Timer(600, print))
            kept[0].start()  # type: ignore[attr-defined]
        else:
            kept.append(ThreadPoolExecutor(1))
            for _ in range(1 if kind == "busy executor" else 2):
                kept[0].submit(release.wait)  # type: ignore[attr-defined]

    run(guard, leave)
    why = guard.unfit
    release.set()
    for one in kept:
        one.cancel() if isinstance(one, threading.Timer) else one.shutdown()  # type: ignore[attr-defined]

    assert why is not None and why.startswith("threads of this task still run: ")
    run(guard, lambda: None)
    assert guard.unfit is None


def test_threads_that_only_wait_for_work_keep_the_process(guard: Guard) -> None:
    kept: list[ThreadPoolExecutor] = []

    def work() -> None:
        kept.append(ThreadPoolExecutor(2))
        assert list(kept[0].map(abs, [-1, 2])) == [1, 2]
        thread = threading.Thread(target=abs, args=(1,))
        thread.start()
        thread.join()

    run(guard, work)
    kept[0].shutdown()

    assert guard.unfit is None


def test_a_collection_of_garbage_while_the_threads_are_listed_ends() -> None:
    """CPython holds a lock while it lists the frames of the threads, and the end of a thread-local object takes the same lock."""
    code = """
import gc, threading
from workers.process.guard import Threads

gc.disable()
gc.freeze()
for number in range(60):
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        cycle = [threading.local()]
        cycle.append(cycle)
    cycle = None
    # The collection begins this number of new objects later.
    gc.set_threshold(gc.get_count()[0] + number % 30)
    gc.enable()
    Threads()
    assert gc.isenabled()
    gc.disable()
    end.set()
    for thread in threads:
        thread.join()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


#: A task that ends a process while the functions run that Python calls after a fork: exceptions in them are lost.
FORKS = """
import multiprocessing, os, time
from workers.process.guard import Guard

begun, told = os.pipe()

def starts():
    os.write(told, b"x")
    time.sleep(60)

os.register_at_fork(after_in_child=starts)

def work():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    os.read(begun, 1)
    child.terminate()
    child.join(20)
    code = child.exitcode
    child.kill()
    return code

print(Guard(own_process=True).run(work, timeout_s=None, why_stop=lambda: "stopped"))
"""


def test_a_process_that_a_task_forks_ends_at_sigterm_even_while_it_starts() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == str(-signal.SIGTERM), ended.stderr
