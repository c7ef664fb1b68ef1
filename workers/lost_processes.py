"""Processes that a task left behind: the worker inherits them, and ends them."""

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Collection

import psutil

from workers.descendants import below, end_tree
from workers.logs import worker_log

PR_SET_CHILD_SUBREAPER = 36
#: Seconds that killed processes get to be gone.
KILL_S = 2.0
#: Seconds after which a pool child that was just forked is known to the pool.
FORKING_S = 0.2


class LostProcesses:
    """Makes this process the parent of whatever its pool children leave behind. One object a worker."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        # Only on Linux; elsewhere orphans go to init and are not looked for.
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def end(self, pool: Collection[int]) -> None:
        """End every child but those of the pool, with its descendants.

        Only what an earlier call has seen too: a pool child that is just being forked is not in `pool` yet.
        """
        found = [child for child in psutil.Process().children() if child.pid not in pool]
        for orphan in found:
            if orphan.pid in self._seen:
                kill_tree(orphan.pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan.pid, os.WNOHANG)
        self._seen = {orphan.pid for orphan in found}

    def end_now(self, pool: Callable[[], Collection[int]]) -> None:
        """The same at once: what is left of tasks whose process has ended must not run beside their next try."""
        mine = os.getpid()
        found = {child.pid for child in below(mine) if child.ppid() == mine and child.pid not in pool()}
        if found:
            time.sleep(FORKING_S)
            for pid in found - set(pool()):
                kill_tree(pid)


def kill_tree(pid: int) -> None:
    """SIGKILL a process and what descended from it until then."""
    if not end_tree(pid, within_s=KILL_S):
        worker_log.error("process %d, or one that it started, does not end although it was killed", pid)
