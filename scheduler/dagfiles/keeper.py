"""A process between the template and the child that reads one file: the parent of all that the file starts, which it ends with it.

Several files are read at once. Each has a keeper of its own, so that what is left behind belongs to one file for certain.
"""

import contextlib
import os
import resource
import select
import signal
from collections.abc import Callable
from typing import NoReturn

from scheduler.dagfiles import process_tree


def keep(run_child: Callable[[int], NoReturn], *, parent: int, limit_s: float) -> NoReturn:
    """The life of a freshly forked keeper: run the child for `limit_s` at most, end what it started, end in the way it did.

    `run_child` gets the id of the keeper.
    """
    code = 1
    me = os.getpid()
    try:
        process_tree.end_with_parent(parent)
        process_tree.become_reaper()
        child = os.fork()
        if child == 0:
            run_child(me)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)  # also here: whoever comes first makes the group
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
    """The exit code of a child and the leader of a group, negative for a signal; it and its group are killed in any case."""
    fd = os.pidfd_open(child)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(limit_s * 1000)
    os.close(fd)
    return kill_group(child)


def kill_group(child: int) -> int:
    """Kill a child and its group; its exit code."""
    # Not waited for yet, so nothing else can have got its id. A child that left its group is still itself.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
