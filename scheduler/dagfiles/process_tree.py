"""Kills all descendants of a process that runs user code, even if they fork or change their process group or session.

A reaper (PR_SET_CHILD_SUBREAPER) becomes the parent of every descendant whose own parent exited. So no descendant can escape, and
a reaper without children has no descendants. If a descendant kills the reaper, the next reaper above adopts it.
"""

import contextlib
import ctypes
import os
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
