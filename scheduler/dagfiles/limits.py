"""Resource limits of processes that parse DAG files or run callbacks."""

import contextlib
import os
import resource
import time

import psutil

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
