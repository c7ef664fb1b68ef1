"""Finds and ends all descendants of a process, so that none escapes by forking in the meantime."""

import contextlib
import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil

from workers.process.logs import worker_log

#: Seconds between two checks of processes that were killed.
LOOK_S = 0.01
#: Seconds in which killed processes must end.
WITHIN_S = 5.0
PR_SET_CHILD_SUBREAPER = 36


def below(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process. A process that has ended has none."""
    return _below({pid})


def end_tree(pid: int, *, within_s: float) -> bool:
    """Kill a process and all its descendants with SIGKILL. Returns whether all of them ended within `within_s` seconds.

    All are stopped first, because a stopped process cannot fork. They are killed once no new descendant appears.
    """
    tree: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        tree[pid] = psutil.Process(pid)
    deadline = time.monotonic() + within_s
    new: Collection[psutil.Process] = list(tree.values())
    while new and time.monotonic() < deadline:
        for process in new:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        new = [process for process in _below(tree.keys()) if process.pid not in tree]
        tree |= {process.pid: process for process in new}
    for process in tree.values():
        with contextlib.suppress(psutil.Error):
            process.kill()
    while not (gone := not any(_runs(process) for process in tree.values())) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return gone


@contextlib.contextmanager
def ended_after() -> Iterator[None]:
    """End all descendants, including daemons, that this process gains in the block."""
    before = {process.pid for process in below(os.getpid())}
    adopt(orphans=True)
    try:
        yield
    finally:
        started = [process for process in below(os.getpid()) if process.pid not in before]
        for process in started:
            end_tree(process.pid, within_s=WITHIN_S)
        adopt(orphans=False)
        for process in started:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def adopt(*, orphans: bool) -> None:
    """Make this process the parent of its orphaned descendants, or no longer. Linux only: elsewhere init adopts them."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def _below(pids: Collection[int]) -> list[psutil.Process]:
    """Return the descendants of any of these processes, from one pass over all processes."""
    children: defaultdict[int, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            children[process.ppid()].append(process)
    descendants: dict[int, psutil.Process] = {}
    waiting = list(pids)
    while waiting:
        for child in children[waiting.pop()]:
            if child.pid not in descendants:
                descendants[child.pid] = child
                waiting.append(child.pid)
    return list(descendants.values())


def _runs(process: psutil.Process) -> bool:
    """Whether it can still run code. A zombie cannot; other code of this process reaps its own zombies."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def with_entry(entry: bytes) -> list[psutil.Process]:
    """Return the other processes of this user that were started with this entry in their environment."""
    processes = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if pid != os.getpid() and entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                processes.append(psutil.Process(pid))
    return processes


#: Seconds in which killed processes must end.
KILL_S = 2.0
#: Seconds after which the pool lists a newly forked pool process.
FORKING_S = 0.2


class Orphans:
    """Makes this process adopt the orphans of its pool processes. One object per worker."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        adopt(orphans=True)

    def end(self, pool: Collection[int]) -> None:
        """End all children outside of the pool, with their descendants.

        A child is ended only if an earlier call has found it too, because a new pool process is not in `pool` yet.
        """
        orphans = [child for child in psutil.Process().children() if child.pid not in pool]
        for orphan in orphans:
            if orphan.pid in self._seen:
                kill_tree(orphan.pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan.pid, os.WNOHANG)
        self._seen = {orphan.pid for orphan in orphans}

    def end_now(self, pool: Callable[[], Collection[int]]) -> None:
        """End all children outside of the pool at once, so that leftovers of a task do not run beside its next try."""
        mine = os.getpid()
        orphans = {child.pid for child in below(mine) if child.ppid() == mine and child.pid not in pool()}
        if orphans:
            time.sleep(FORKING_S)
            for pid in orphans - set(pool()):
                kill_tree(pid)


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants with SIGKILL."""
    if not end_tree(pid, within_s=KILL_S):
        worker_log.error("process %d, or one that it started, does not end although it was killed", pid)
