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


def ended(classes: Any, context: Any) -> str | None:
    """Why the JVM of a SparkContext cannot run Python any more; None if it can, or has not yet."""
    return None if all(map(is_running, _pids(classes, context))) else "one of its Python daemons has ended"


def is_running(pid: int) -> bool:
    """Whether a process lives, is not stopped, and nobody has just killed it: it may take a moment to die."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return not Path("/proc/self/status").exists()
    said = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return said["State"][0] not in NOT_RUNNING and not int(said["ShdPnd"], 16) & SIGKILL


def _pids(classes: Any, context: Any) -> Iterator[int]:
    """Spark tells of them nowhere, so its fields are read; another version may have others, and is then taken for sound."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, AttributeError, TypeError):
        factories = _field(classes, "org.apache.spark.SparkEnv", "pythonWorkers").get(context.env()).valuesIterator()
        while factories.hasNext():
            daemon = _field(classes, "org.apache.spark.api.python.PythonWorkerFactory", "daemon").get(factories.next())
            if daemon is not None:
                yield int(daemon.pid())


def _field(classes: Any, owner: str, name: str) -> Any:
    """By the name of its class: asked for methods of an object, py4j wants all classes that they speak of, and some are missing."""
    field = classes.java.lang.Class.forName(owner).getDeclaredField(name)
    field.setAccessible(True)
    return field
