"""The limits of processes that run user code, and the end of all their descendants, even if they change their group or session.

A reaper (PR_SET_CHILD_SUBREAPER) becomes the parent of every descendant whose own parent exited. So no descendant can escape, and
a reaper without children has no descendants. If a descendant kills the reaper, the next reaper above adopts it.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

import psutil

PR_SET_CHILD_SUBREAPER = 36
#: Seconds for killing. A process that waits for a disk ends late, and processes that fork as fast as they are killed may never end.
KILL_S = 5.0
PAUSE_S = 0.002

_libc = ctypes.CDLL(None)
_lock = threading.Lock()
#: Processes that `start` has started, which are not strays.
_started: set[int] = set()
#: Whether this process is a reaper.
_is_reaper = False


def become_reaper() -> None:
    """Make this process adopt its orphaned descendants from now on. A forked process does not inherit this."""
    global _is_reaper  # noqa: PLW0603 - a property of the process
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _is_reaper = True


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process that `kill_strays` ignores until `ended` is called."""
    with _lock:
        process = subprocess.Popen(command, **options)
        _started.add(process.pid)
    return process


def ended(pid: int) -> None:
    """Record that a process from `start` was reaped. Its remaining descendants are strays from now on."""
    with _lock:
        _started.discard(pid)


def kill_session(session: int) -> None:
    """Kill all processes of a session, including those that left their process group."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)


def kill_below() -> None:
    """Kill and reap all descendants of this reaper, for at most KILL_S."""
    deadline = time.monotonic() + KILL_S
    while not _is_childless() and time.monotonic() < deadline:
        _kill(psutil.Process().children(recursive=True))
        time.sleep(PAUSE_S)


def kill_strays(known: Collection[int] = ()) -> None:
    """Kill and reap all children of this reaper that are neither `known` nor from `start`, with their descendants.

    Does nothing in a process that is not a reaper.
    """
    if not _is_reaper:
        return
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        with _lock:  # otherwise a new process that `start` has not recorded yet could look like a stray
            strays = [child for child in psutil.Process().children() if child.pid not in _started and child.pid not in known]
        if not strays:
            return
        for stray in strays:
            with contextlib.suppress(psutil.Error):
                _kill([stray, *stray.children(recursive=True)])
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray.pid, os.WNOHANG)
        time.sleep(PAUSE_S)


def _is_childless() -> bool:
    """Reap the ended children. Returns whether no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return True
    return False


def _kill(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


MIB = 1 << 20
#: Maximum number of processes and threads beyond the ones that the user already runs: the kernel counts them together.
#: It does not limit root. It is generous, because processes of other containers with the same user ID count too.
MAX_PROCESSES = 4096
MAX_OPEN_FILES = 1024
#: Seconds for which a count of the user's processes is reused.
COUNT_S = 10.0


def confine(*, memory_mb: int, file_mb: int, reserve_mb: int = 0, processes: int | None = None) -> None:
    """Limit this process and all its descendants. `reserve_mb` is for reporting that the rest of the memory is used up.

    `processes` is the limit for all processes and threads of the user; None for root.
    """
    memory = memory_mb * MIB
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory + reserve_mb * MIB))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_FSIZE, file_mb * MIB)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    if processes is not None:
        _lower(resource.RLIMIT_NPROC, processes)


class ProcessCount:
    """Computes the process limit of a child from the number of processes that its user runs."""

    def __init__(self) -> None:
        self._counted_at: float | None = None
        self._limit: int | None = None

    def limit(self) -> int | None:
        """Return the value for `confine`."""
        if self._counted_at is None or time.monotonic() - self._counted_at > COUNT_S:
            self._counted_at = time.monotonic()
            self._limit = None if os.getuid() == 0 else _running(os.getuid()) + MAX_PROCESSES
        return self._limit


def _lower(what: int, limit: int) -> None:
    _, hard = resource.getrlimit(what)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(what, (limit, limit))


def _running(user: int) -> int:
    """Count the threads of all processes of a user.

    The owner of a folder in /proc is not usable: the folders of non-dumpable processes belong to root.
    """
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == user:
                count += process.num_threads()
    return count
