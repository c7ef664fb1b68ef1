"""The Python daemons of a JVM, which fork the workers of UDFs and RDDs: whether one of them was ended.

Spark keeps the workers of a daemon for later tasks. It cannot let go of them once their daemon has died: the next tasks fail by
a closed stream until none is left.
"""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The bit of a signal that the kernel keeps until the process is gone.
SIGKILL = 1 << (signal.SIGKILL - 1)
#: Stopped, traced, a zombie, dead.
NOT_RUNNING = "TtZX"


def ended(classes: Any) -> str | None:
    """Why the JVM cannot run Python any more; None if it can, or has not yet."""
    return None if all(map(is_running, _pids(classes))) else "one of its Python daemons has ended"


def is_running(pid: int) -> bool:
    """Whether a process lives, is not stopped, and nobody has just killed it: it may take a moment to die."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return not Path("/proc/self/status").exists()
    said = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return said["State"][0] not in NOT_RUNNING and not int(said["ShdPnd"], 16) & SIGKILL


def _pids(classes: Any) -> Iterator[int]:
    """Spark tells of them nowhere, so its fields are read; another version may have others, and is then taken for sound."""
    from py4j.protocol import Py4JJavaError

    with contextlib.suppress(Py4JJavaError, AttributeError, TypeError):
        factories = _field(classes.org.apache.spark.SparkEnv.get(), "pythonWorkers").valuesIterator()
        while factories.hasNext():
            daemon = _field(factories.next(), "daemon")
            if daemon is not None:
                yield int(daemon.pid())


def _field(owner: Any, name: str) -> Any:
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)
