"""The task killer: a process beside the worker that ends tasks when the worker was killed or stopped for too long.

It is forked before the worker has threads or pool processes. It leaves the worker's process group, so that it does not receive the
signals of the group, and it uses no server. While it ends processes, it holds the lock of the worker's pidfile
(scheduler/process/pidfile), so that the worker is not declared lost before its tasks have ended.

A program that a task starts carries an entry in its environment. A process that a task forks without an exec does not, so it
reports itself through a pipe right after the fork. Every such process holds the pipe, so end of file means that none is left.
"""

import contextlib
import ctypes
import os
import signal
import stat
import time
import uuid
from collections.abc import Mapping
from typing import NoReturn

import psutil

from scheduler.process.hardening import die_with_parent
from workers.process.logs import worker_log
from workers.supervision.descendants import below, end_tree, with_entry
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.task_stopper import LEASE_ENDED

#: Bytes of the pipe that are read at once.
CHUNK = 65_536


class Forks:
    """Create it in the worker. Then that process calls `report`, and the process that reads the reports calls `listen`."""

    def __init__(self) -> None:
        self._reports, self._in = os.pipe()
        os.set_blocking(self._reports, False)
        os.set_blocking(self._in, False)
        #: By process id when it started, since the id may be used again.
        self._started: dict[int, int] = {}
        #: Whether no process is left that could report: each has ended, or closed all its files.
        self.gone = False

    def report(self) -> None:
        """From now on, each process that is forked from this one, directly or not, reports itself."""
        os.close(self._reports)
        os.register_at_fork(after_in_child=self._report_this)

    def stop(self) -> None:
        """Report no more; the pipe is closed."""
        with contextlib.suppress(OSError):
            os.close(self._in)
        self._in = -1

    def listen(self) -> None:
        """This process reads."""
        os.close(self._in)

    def read(self) -> None:
        """Read the reports, and forget processes that have ended."""
        text = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reports, CHUNK):
                text += chunk
            self.gone = True
        for line in text.decode().splitlines():
            pid, _, started_at = line.partition(" ")
            self._started[int(pid)] = int(started_at)
        self._started = {pid: at for pid, at in self._started.items() if _runs(pid, at)}

    def running(self) -> list[psutil.Process]:
        """The processes that had not ended at the last `read`."""
        processes = []
        for pid in self._started:
            with contextlib.suppress(psutil.Error):
                processes.append(psutil.Process(pid))
        return processes

    def _report_this(self) -> None:
        if self._in >= 0:
            with contextlib.suppress(OSError, ValueError):
                os.write(self._in, f"{os.getpid()} {_state(os.getpid())[1]}\n".encode())


def _state(pid: int) -> tuple[bytes, int]:
    """The letter of a process's state, and when it started, in ticks since the machine did."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()
    return fields[0], int(fields[19])


def _runs(pid: int, started_at: int) -> bool:
    try:
        letter, at = _state(pid)
    except (OSError, ValueError):
        return False
    return at == started_at and letter != b"Z"


#: In the environment of all programs that a task starts, so that they can be identified after their parents have ended.
ENTRY = "_PACELINE_WORKER_PROCESS"
#: Seconds between two checks of leases, and between two readings of the worker's descendants.
LEASE_LOOK_S, TREE_LOOK_S = 0.1, 1.0
#: Seconds after which it stops waiting for processes that SIGKILL does not end.
WITHIN_S = 5.0
PARENT_DIED = signal.SIGUSR1
PR_SET_NAME = 15


class TaskKiller:
    """The task killer of a worker. Start it in the main thread of the worker, before any other thread."""

    def __init__(self, running_tasks: RunningTasks) -> None:
        self._running_tasks = running_tasks
        self._worker = os.getpid()
        self._entry = f"{ENTRY}={uuid.uuid4().hex}"
        self.pid: int | None = None
        self._forks: Forks | None = None

    def start(self) -> None:
        """Fork the task killer. All programs started from now on have the entry in their environment."""
        name, _, value = self._entry.partition("=")
        os.environ[name] = value
        forks = self._forks = Forks()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                forks.listen()
                self._watch(forks)
            os._exit(0)
        forks.report()

    def end(self) -> None:
        """End the task killer, because the worker has shut down cleanly or restarts."""
        pid, self.pid = self.pid, None
        if self._forks is not None:
            self._forks.stop()
        if pid is not None and os.getpid() == self._worker:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _watch(self, forks: Forks) -> None:
        _leave_the_group()
        die_with_parent(self._worker, PARENT_DIED)
        known: dict[int, psutil.Process] = {}
        looked_at = 0.0
        while not self._worker_died(LEASE_LOOK_S if self._leased() else TREE_LOOK_S):
            self._end_unleased()
            forks.read()
            if (now := time.monotonic()) >= looked_at + TREE_LOOK_S and self._running_tasks.running():
                known, looked_at = {process.pid: process for process in below(self._worker) if process.pid != os.getpid()}, now
        self._end_all(known, forks)

    def _worker_died(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for the death of the worker. Returns whether it died."""
        signaled = signal.sigtimedwait({PARENT_DIED}, timeout_s) is not None
        # After a SIGCONT that arrives later than the timeout, Python returns a signal although none was sent.
        return signaled and os.getppid() != self._worker

    def _leased(self) -> bool:
        return any(task.exclusive for task in self._running_tasks.running())

    def _end_unleased(self) -> None:
        """End exclusive tasks without a lease. The task stopper does this too, except while the worker is stopped (SIGSTOP)."""
        for task in self._running_tasks.unleased():
            worker_log.warning("killing process %d (dispatch %s): %s", task.pid, task.dispatch_id, LEASE_ENDED)
            end_tree(task.pid, within_s=WITHIN_S)

    def _end_all(self, known: Mapping[int, psutil.Process], forks: Forks) -> NoReturn:
        """End the processes that pool processes have started or forked. The pool processes themselves die with the worker."""
        deadline = time.monotonic() + WITHIN_S
        quiet = 0
        remaining = [process for process in known.values() if process.is_running()]
        while (quiet < 2 or not forks.gone) and time.monotonic() < deadline:
            forks.read()
            pids = {process.pid for process in (*remaining, *forks.running(), *with_entry(self._entry.encode()))}
            for pid in pids:
                end_tree(pid, within_s=WITHIN_S)
            quiet = 0 if pids else quiet + 1
            remaining = []
            time.sleep(0.02)
        os._exit(0)


def _leave_the_group() -> None:
    """Leave the worker's process group, close its connections and ignore stop signals."""
    os.setsid()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        # Otherwise the servers would keep the worker's connections after its death.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {PARENT_DIED})
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"task-killer", 0, 0, 0)
