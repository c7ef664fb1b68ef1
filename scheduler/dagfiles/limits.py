"""What a process of the author's code may use while its file is read or its callbacks run."""

import contextlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
#: Processes and threads that may be started in addition to those that its user runs already, which the kernel counts together.
#: Root is not limited by it. Generous, because those of other containers count as well where they have the same user id.
MAX_PROCESSES = 4096
MAX_OPEN_FILES = 1024
#: How long a count of the user's processes holds.
COUNT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes in MiB. `reserve_mb`: address space kept back for the report that the rest is used up."""

    memory_mb: int
    file_mb: int
    reserve_mb: int = 0
    #: Of the user altogether; None for root.
    processes: int | None = None


def confine(limits: Limits) -> None:
    """Limit this process and all that it starts."""
    memory = limits.memory_mb * MIB
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory + limits.reserve_mb * MIB))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_FSIZE, limits.file_mb * MIB)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    if limits.processes is not None:
        _lower(resource.RLIMIT_NPROC, limits.processes)


class ProcessCount:
    """How many processes a child may bring its user to."""

    def __init__(self) -> None:
        self._counted_at: float | None = None
        self._limit: int | None = None

    def limit(self) -> int | None:
        """For `Limits.processes`."""
        if self._counted_at is None or time.monotonic() - self._counted_at > COUNT_S:
            self._counted_at = time.monotonic()
            self._limit = None if os.getuid() == 0 else _running(os.getuid()) + MAX_PROCESSES
        return self._limit


def _lower(what: int, limit: int) -> None:
    _, hard = resource.getrlimit(what)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(what, (limit, limit))


def _running(user: int) -> int:
    """Threads of all processes of a user. Who owns a folder of /proc says nothing: those of a closed process are root's."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
                status = dict(line.split(":", 1) for line in (entry / "status").read_text(errors="replace").splitlines())
                if int(status["Uid"].split()[0]) == user:
                    count += int(status["Threads"])
    return count
