"""The Python daemons of a JVM, which fork the workers of UDFs and RDDs: checks whether one of them has ended.

Spark keeps the workers of a daemon for later tasks, and does not notice that their daemon has died: the next tasks fail with a
closed stream until no such worker is left.
"""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FACTORY = "org.apache.spark.api.python.PythonWorkerFactory"
#: The bit of SIGKILL in the pending signals of a process.
SIGKILL = 1 << (signal.SIGKILL - 1)
#: Stopped, traced, a zombie, dead.
NOT_RUNNING = "TtZX"


def ended(classes: Any, context: Any) -> str | None:
    """Why the JVM of a SparkContext cannot run Python any more; None if it can, or has not done so yet."""
    return None if all(map(is_running, _pids(classes, context))) else "one of its Python daemons has ended"


def is_running(pid: int) -> bool:
    """Whether a process runs: it is not stopped, and no SIGKILL is pending, since a killed process takes a moment to end."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return not Path("/proc/self/status").exists()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return fields["State"][0] not in NOT_RUNNING and not int(fields["ShdPnd"], 16) & SIGKILL


def end_idle_workers(classes: Any, context: Any) -> None:
    """End the workers that wait for work: UDFs of the next task would find the environment, folder and modules of this one.

    Their daemon stays, and forks others.
    """
    for factory in _factories(classes, context):
        method = factory.getClass().getDeclaredMethod(f"{FACTORY.replace('.', '$')}$$cleanupIdleWorkers", None)
        method.invoke(factory, None)


def _pids(classes: Any, context: Any) -> Iterator[int]:
    """The PIDs of the daemons, from private fields of Spark, which has no API for them. Without these fields there are none."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, AttributeError, TypeError):
        for factory in _factories(classes, context):
            daemon = field(classes, FACTORY, "daemon").get(factory)
            if daemon is not None:
                yield int(daemon.pid())


def _factories(classes: Any, context: Any) -> Iterator[Any]:
    factories = field(classes, "org.apache.spark.SparkEnv", "pythonWorkers").get(context.env()).valuesIterator()
    while factories.hasNext():
        yield factories.next()


def field(classes: Any, owner: str, name: str) -> Any:
    """A field by the name of its class: reflection on an object would load classes that may be missing."""
    field = classes.java.lang.Class.forName(owner).getDeclaredField(name)
    field.setAccessible(True)
    return field
