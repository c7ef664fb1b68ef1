"""Ends the orphans of tasks: processes that outlived theirs, and which the worker adopts."""

import contextlib
import os
import time
from collections.abc import Callable, Collection

import psutil

from workers.process.logs import worker_log
from workers.supervision.descendants import adopt, below, end_tree

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
