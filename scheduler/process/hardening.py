"""Keeps what a process of ours knows from the author's code and from other processes of the same user."""

import ctypes
import os
import sys
from collections.abc import Iterable

PR_SET_DUMPABLE = 4
#: Variables that only our own processes may see; each also stands for all that begin with it.
OURS = (
    "PACELINE_DATABASE_", "PACELINE_BROKER_", "PACELINE_SMTP_", "PACELINE_CORE_FERNET_KEY", "PACELINE_WORKER_DATABASE_URL",
    "PACELINE_POSTGRES_PASSWORD", "PACELINE_SCHEDULER_PASSWORD", "PACELINE_WORKER_PASSWORD", "PACELINE_REDIS_",
    "PACELINE_FLOWER_PASSWORD", "PACELINE_SPARK_PASSWORD", "FLOWER_BASIC_AUTH",
)  # fmt: skip
#: What tasks may read through Variable and Connection, but not find.
STORED = ("PACELINE_VAR_", "PACELINE_CONN_")
#: What libpq reads at each connect; so a process that connects keeps it, and a child that does not never gets it.
LIBPQ = ("PGPASSWORD", "PGPASSFILE", "PGSERVICE")

_libc = ctypes.CDLL(None)
_libc.getenv.restype = ctypes.c_void_p


def clean(environment: Iterable[tuple[str, str]]) -> dict[str, str]:
    """An environment for the author's code that is only being looked at: without anything secret."""
    return {name: value for name, value in environment if not name.startswith((*OURS, *STORED, *LIBPQ))}


def forget() -> None:
    """Take our secrets out of this process's environment, once they are read.

    What the process was started with lies in its memory, and in /proc/<pid>/environ, whatever os.environ holds: it is overwritten.
    """
    for name in [name for name in os.environ if name.startswith((*OURS, *STORED))]:
        overwrite(name)
        del os.environ[name]


def overwrite(name: str) -> None:
    """Blank out the value of an environment variable where it lies."""
    place = _libc.getenv(os.fsencode(name))
    if place:
        ctypes.memset(place, 0, len(os.fsencode(os.environ[name])))


def close() -> None:
    """Let nobody but root read this process's memory and environment, nor attach to it; nor the core of its crash.

    Holds for what it forks, not for what it starts (exec). Only on Linux.
    """
    if sys.platform == "linux":
        _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
