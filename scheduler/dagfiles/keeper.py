"""The keeper: a process between the fork server and the child that parses a file. It kills all processes that the file starts.

Several files are parsed at once. Each has its own keeper, so that every leftover process belongs to a known file.
"""

import contextlib
import os
import resource
import select
import signal
from collections.abc import Callable
from typing import NoReturn

from scheduler.dagfiles import process_tree
from scheduler.process import parent_death


def keep(run_child: Callable[[int], NoReturn], *, parent: int, limit_s: float) -> NoReturn:
    """Run a newly forked keeper: run the child for at most `limit_s` seconds, kill its descendants, and exit in the same way.

    `run_child` receives the process ID of the keeper.
    """
    code = 1
    me = os.getpid()
    try:
        parent_death.die_with_parent(parent)
        process_tree.become_reaper()
        child = os.fork()
        if child == 0:
            run_child(me)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)  # also done in the child: the first call creates the group
        code = wait(child, limit_s)
        process_tree.kill_below()
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with contextlib.suppress(OSError):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(me, -code)
    finally:
        os._exit(code if code >= 0 else 1)


def wait(child: int, limit_s: float) -> int:
    """Wait for a child that leads a process group, then kill both. Returns its exit code, negative for a signal."""
    fd = os.pidfd_open(child)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(limit_s * 1000)
    os.close(fd)
    return kill_group(child)


def kill_group(child: int) -> int:
    """Kill a child and its group, and return its exit code."""
    # The child is not reaped yet, so no other process can have its ID. It is also killed by ID, because it may have left its group.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
