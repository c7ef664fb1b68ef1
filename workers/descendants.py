"""The processes below a process: find them all, and end them so that none escapes by forking meanwhile."""

import contextlib
import ctypes
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator

import psutil

#: Seconds between two looks at what is being ended.
LOOK_S = 0.01
#: Seconds that processes which were killed get to be gone.
WITHIN_S = 5.0
PR_SET_CHILD_SUBREAPER = 36


def below(pid: int) -> list[psutil.Process]:
    """All that descend from a process; none if it is gone."""
    return _below({pid})


def end_tree(pid: int, *, within_s: float) -> bool:
    """SIGKILL a process and all that descends from it; whether all of them were gone in time.

    Everything is stopped first, since what is stopped forks no more, and only killed once a look finds nothing new.
    """
    tree: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        tree[pid] = psutil.Process(pid)
    deadline = time.monotonic() + within_s
    found: Collection[psutil.Process] = list(tree.values())
    while found and time.monotonic() < deadline:
        for one in found:
            with contextlib.suppress(psutil.Error):
                one.suspend()
        found = [one for one in _below(tree.keys()) if one.pid not in tree]
        tree |= {one.pid: one for one in found}
    for one in tree.values():
        with contextlib.suppress(psutil.Error):
            one.kill()
    while not (gone := not any(_runs(one) for one in tree.values())) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return gone


@contextlib.contextmanager
def ended_after() -> Iterator[None]:
    """What is started below this process inside the block, daemons too, is ended with it."""
    before = {one.pid for one in below(os.getpid())}
    _adopt(orphans=True)
    try:
        yield
    finally:
        started = [one for one in below(os.getpid()) if one.pid not in before]
        for one in started:
            end_tree(one.pid, within_s=WITHIN_S)
        _adopt(orphans=False)
        for one in started:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)


def _adopt(*, orphans: bool) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def _below(pids: Collection[int]) -> list[psutil.Process]:
    """By one look at all processes, what descends from any of these."""
    children: defaultdict[int, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            children[process.ppid()].append(process)
    found: dict[int, psutil.Process] = {}
    waiting = list(pids)
    while waiting:
        for child in children[waiting.pop()]:
            if child.pid not in found:
                found[child.pid] = child
                waiting.append(child.pid)
    return list(found.values())


def _runs(process: psutil.Process) -> bool:
    """Whether it can still run code. A zombie cannot; one of our own is collected by whoever waits for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def environment_holds(pid: int, entry: bytes) -> bool:
    """Whether a process was started with this entry in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return entry in file.read().split(b"\0")
    except OSError:
        return False


def with_entry(entry: bytes) -> list[psutil.Process]:
    """Processes of ours that were started with this entry in their environment."""
    found = []
    for pid in psutil.pids():
        if pid != os.getpid() and environment_holds(pid, entry):
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(pid))
    return found
