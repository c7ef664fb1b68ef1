"""Hides the secrets of a Paceline process from user code and from other processes of the same user."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable

PR_SET_DUMPABLE = 4
#: Environment variables that only Paceline's own processes may see. Each is a prefix.
OURS = (
    "PACELINE_DATABASE_", "PACELINE_BROKER_", "PACELINE_SMTP_", "PACELINE_CORE_FERNET_KEY", "PACELINE_WORKER_DATABASE_URL",
    "PACELINE_POSTGRES_PASSWORD", "PACELINE_SCHEDULER_PASSWORD", "PACELINE_WORKER_PASSWORD", "PACELINE_REDIS_",
    "PACELINE_FLOWER_PASSWORD", "PACELINE_SPARK_PASSWORD", "FLOWER_BASIC_AUTH", "PACELINE_WEB_", "PACELINE_OIDC_",
    "PACELINE_LINEAGE_", "PACELINE_TABLES_STORAGE_OPTIONS",
)  # fmt: skip
#: Variables and connections in the environment: tasks may read them by name, but not list them.
STORED = ("PACELINE_VAR_", "PACELINE_CONN_", "AIRFLOW_VAR_", "AIRFLOW_CONN_")
#: libpq reads these at each connect, so a process that connects keeps them. A child that does not connect never gets them.
LIBPQ = ("PGPASSWORD", "PGPASSFILE", "PGSERVICE")

_libc = ctypes.CDLL(None)
_libc.getenv.restype = ctypes.c_void_p


def clean(environment: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return an environment without secrets, for processes that only parse user code."""
    return {name: value for name, value in environment if not name.startswith((*OURS, *STORED, *LIBPQ))}


def forget() -> None:
    """Remove Paceline's secrets from the environment of this process, after they were read.

    The environment at the start of the process stays in its memory, and so in /proc/<pid>/environ. It is overwritten there too.
    """
    for name in [name for name in os.environ if name.startswith((*OURS, *STORED))]:
        overwrite(name)
        del os.environ[name]


def overwrite(name: str) -> None:
    """Overwrite the value of an environment variable in memory with zero bytes."""
    address = _libc.getenv(os.fsencode(name))
    if address:
        ctypes.memset(address, 0, len(os.fsencode(os.environ[name])))


def close() -> None:
    """Prevent all users but root from reading the memory and environment of this process, and from attaching to it.

    This also disables core dumps. Forked processes inherit it, executed programs do not. Linux only.
    """
    if sys.platform == "linux":
        _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


PR_SET_PDEATHSIG = 1
_libc_of_linux = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal when `parent`, which forked it from its main thread, ends. Linux only.

    The parent may have ended before the call to prctl, so it is checked afterwards.
    """
    if _libc_of_linux is not None:
        _libc_of_linux.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
