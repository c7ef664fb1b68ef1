"""Processes that a task left behind: the worker inherits them, and ends them."""

import contextlib
import ctypes
import os
from collections.abc import Collection

import psutil

PR_SET_CHILD_SUBREAPER = 36


class Orphans:
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


def kill_tree(pid: int) -> None:
    """SIGKILL a process, then what descended from it until then."""
    try:
        process = psutil.Process(pid)
        below = process.children(recursive=True)
        process.kill()
    except psutil.NoSuchProcess:
        return
    for descendant in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendant.kill()
