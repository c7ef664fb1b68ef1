"""Ends everything that a process of the author's code has started, whatever it did to get away: forks, groups, sessions.

A reaper (PR_SET_CHILD_SUBREAPER) becomes the parent of every descendant whose own parent ended. So nothing below it can leave, and
once the kernel says that it has no child, nothing is left. Whoever kills the reaper gets the next one above for a parent.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
#: How long killing may take: what waits for a disk ends late, and what forks as fast as it is killed may never end.
KILL_S = 5.0
PAUSE_S = 0.002

_libc = ctypes.CDLL(None)
_lock = threading.Lock()
#: Of a process that starts others for good (`start`): those that are no strays. And whether it is their reaper.
_started: set[int] = set()
_is_reaper = False


def become_reaper() -> None:
    """From now on whatever loses its parent below this process is a child of it. Not inherited by a fork."""
    global _is_reaper  # noqa: PLW0603 - a property of the process
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _is_reaper = True


def end_with_parent(parent: int) -> None:
    """Let this process, which `parent` has just forked, be killed when that ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before this was asked for
        os._exit(1)


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process that `kill_strays` passes over until `ended`."""
    with _lock:
        process = subprocess.Popen(command, **options)
        _started.add(process.pid)
    return process


def ended(pid: int) -> None:
    """A process that `start` gave has been waited for; what it left behind is a stray now."""
    with _lock:
        _started.discard(pid)


def kill_session(session: int) -> None:
    """Kill every process of a session, also those that left their process group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)


def kill_below(limit_s: float = KILL_S) -> bool:
    """In a reaper: kill and wait for everything below it; False if something is left after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not _is_childless():
        if time.monotonic() >= deadline:
            return False
        _kill(psutil.Process().children(recursive=True))
        time.sleep(PAUSE_S)
    return True


def kill_strays(known: Collection[int] = (), limit_s: float = KILL_S) -> None:
    """In a reaper: kill and wait for every child that is neither `known` nor from `start`, with all below it."""
    if not _is_reaper:
        return
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with _lock:  # or a process might be seen that `start` has not noted yet
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
    """Wait for the children that have ended; whether there is no other."""
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
