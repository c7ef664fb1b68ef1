"""A process beside the worker that ends tasks which the worker no longer can: when the worker was killed, or stopped for too long.

It is forked before the worker has threads or pool children, leaves the worker's group, so that no signal meant for that reaches
it, and asks nothing of any server. While it ends processes it holds the mark of the worker (scheduler/presence), so nobody
takes the worker for gone before what it ran is gone.

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

from scheduler.process.parent_death import die_with_parent
from workers.descendants import below, end_tree, with_entry
from workers.forks import Forks
from workers.logs import worker_log
from workers.running_tasks import RunningTasks
from workers.task_stopper import LEASE_ENDED

#: In the environment of whatever a task starts, so that it is known when its parents are gone.
ENTRY = "_PACELINE_WORKER_PROCESS"
#: Seconds between two looks at leases, and between two looks at what runs below the worker.
LEASE_LOOK_S, TREE_LOOK_S = 0.1, 1.0
#: Seconds after which processes that do not even die of SIGKILL are given up.
WITHIN_S = 5.0
PARENT_DIED = signal.SIGUSR1
PR_SET_NAME = 15


class TaskKiller:
    """Start it in the main thread of the worker, before any other thread."""

    def __init__(self, running_tasks: RunningTasks) -> None:
        self._running_tasks = running_tasks
        self._worker = os.getpid()
        self._entry = f"{ENTRY}={uuid.uuid4().hex}"
        self.pid: int | None = None
        self._forks: Forks | None = None

    def start(self, environment: dict[str, str] | None = None) -> None:
        """Fork; what is started from now on carries the entry."""
        name, _, value = self._entry.partition("=")
        (os.environ if environment is None else environment)[name] = value
        forks = self._forks = Forks()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                forks.listen()
                self._watch(forks)
            os._exit(0)
        forks.report()

    def end(self) -> None:
        """The worker has ended in order, or begins anew."""
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
                known, looked_at = {one.pid: one for one in below(self._worker) if one.pid != os.getpid()}, now
        self._end_all(known, forks)

    def _worker_died(self, timeout_s: float) -> bool:
        """Whether it does within `timeout_s`."""
        told = signal.sigtimedwait({PARENT_DIED}, timeout_s) is not None
        # A SIGCONT after that time makes Python return a signal that nobody sent.
        return told and os.getppid() != self._worker

    def _leased(self) -> bool:
        return any(one.exclusive for one in self._running_tasks.running())

    def _end_unleased(self) -> None:
        """The warden of the worker does this. It does not while the worker is stopped."""
        for one in self._running_tasks.unleased():
            worker_log.warning("killing process %d (dispatch %s): %s", one.pid, one.dispatch_id, LEASE_ENDED)
            end_tree(one.pid, within_s=WITHIN_S)

    def _end_all(self, known: Mapping[int, psutil.Process], forks: Forks) -> NoReturn:
        """The pool children die with the worker; what they had started or forked does not."""
        deadline = time.monotonic() + WITHIN_S
        quiet = 0
        found = [one for one in known.values() if one.is_running()]
        while (quiet < 2 or not forks.gone) and time.monotonic() < deadline:
            forks.read()
            started = {one.pid: one for one in (*found, *forks.running(), *with_entry(self._entry.encode()))}
            for pid in started:
                end_tree(pid, within_s=WITHIN_S)
            quiet = 0 if started else quiet + 1
            found = []
            time.sleep(0.02)
        os._exit(0)


def _leave_the_group() -> None:
    """No signal to the group, and no connection of the worker, is this process's."""
    os.setsid()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        # The servers would take the worker for connected.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {PARENT_DIED})
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"task-killer", 0, 0, 0)
