"""What all sessions of a JVM share: the log levels, the thread pools of Spark SQL, the Python daemons, and the Python side of
PySpark with its modules, classes and objects, which tasks may change.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from paceline.exceptions import TaskStopped, TaskTimeout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LogLevels:
    """The levels of all loggers, including the root, of a new JVM."""

    def __init__(self, classes: Any) -> None:
        self._classes = classes
        loggers = self._loggers()
        self._levels = classes.java.util.HashMap()
        for name in loggers.keySet():
            self._levels.put(name, loggers.get(name).getLevel())
        self._names = self._levels.keySet()
        self._logging = getattr(getattr(classes.org.apache.spark.internal, "Logging$"), "MODULE$")
        self._threshold = self._logging.sparkShellThresholdLevel()

    def restore(self) -> None:
        """Restore the levels that a task changed, and remove the loggers that it added."""
        log4j = self._classes.org.apache.logging.log4j
        if not self._loggers().keySet().equals(self._names):
            added = self._classes.java.util.HashSet(self._loggers().keySet())
            added.removeAll(self._names)
            for name in added:
                self._configuration().removeLogger(name)
            log4j.LogManager.getContext(False).updateLoggers()
        log4j.core.config.Configurator.setLevel(self._levels)
        # setLogLevel of a SparkContext removes the threshold of Spark's shells.
        getattr(self._logging, "sparkShellThresholdLevel_$eq")(self._threshold)

    def _configuration(self) -> Any:
        return self._classes.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration()

    def _loggers(self) -> Any:
        return self._configuration().getLoggers()


#: Seconds after which an idle thread ends; Spark's default is 60.
THREADS_KEPT_S = 1
#: The classes with pools, in org.apache.spark.sql.execution.
POOLS = (
    "SubqueryExec",
    "exchange.BroadcastExchangeExec",
    "exchange.ShuffleExchangeExec",
    "adaptive.AdaptiveSparkPlanExec",
    "adaptive.ResultQueryStageExec",
)


def end_idle_threads_soon(classes: Any) -> None:
    """Make the idle threads of all pools end within a second.

    A new thread inherits the active session of its creator, and every query creates one in each pool, up to a thousand. So
    the sessions of all tasks of the last minute would stay in the heap, with hundreds of kB each.
    """
    from py4j.protocol import Py4JError

    seconds = classes.java.util.concurrent.TimeUnit.SECONDS
    for name in POOLS:
        # Another version of Spark may have other pools; then the limits on a warm JVM bound its memory.
        with contextlib.suppress(AttributeError, TypeError, Py4JError):
            _thread_pool(classes.org.apache.spark.sql.execution, name).setKeepAliveTime(THREADS_KEPT_S, seconds)


def _thread_pool(package: Any, name: str) -> Any:
    *folders, last = name.split(".")
    for folder in folders:
        package = getattr(package, folder)
    return getattr(getattr(package, f"{last}$"), "MODULE$").executionContext().executor()


FACTORY = "org.apache.spark.api.python.PythonWorkerFactory"
#: The bit of SIGKILL in the pending signals of a process.
SIGKILL = 1 << (signal.SIGKILL - 1)
#: Stopped, traced, a zombie, dead.
NOT_RUNNING = "TtZX"


def python_factories(classes: Any, context: Any) -> Any:
    """What starts the Python daemons of a SparkContext: a map of Scala, empty until it first runs Python.

    None if this Spark has no such private field.
    """
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError):
        return field(classes, "org.apache.spark.SparkEnv", "pythonWorkers").get(context.env())
    return None


def why_python_ended(classes: Any, factories: Any) -> str | None:
    """Why the JVM of a SparkContext cannot run Python any more; None if it can, or has not done so yet."""
    return None if all(map(is_running, _pids(classes, factories))) else "one of its Python daemons has ended"


def is_running(pid: int) -> bool:
    """Whether a process runs: it is not stopped, and no SIGKILL is pending, since a killed process takes a moment to end."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return not Path("/proc/self/status").exists()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return fields["State"][0] not in NOT_RUNNING and not int(fields["ShdPnd"], 16) & SIGKILL


def end_idle_workers(factories: Any) -> None:
    """End the workers that wait for work: UDFs of the next task would find the environment, folder and modules of this one.

    Their daemon stays, and forks others.
    """
    for factory in _elements(factories):
        method = factory.getClass().getDeclaredMethod(f"{FACTORY.replace('.', '$')}$$cleanupIdleWorkers", None)
        method.invoke(factory, None)


def _pids(classes: Any, factories: Any) -> Iterator[int]:
    """The PIDs of the daemons, from a private field of Spark, which has no API for them. Without this field there are none."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, AttributeError, TypeError):
        for factory in _elements(factories):
            daemon = field(classes, FACTORY, "daemon").get(factory)
            if daemon is not None:
                yield int(daemon.pid())


def _elements(factories: Any) -> Iterator[Any]:
    if factories.isEmpty():
        return
    values = factories.valuesIterator()
    while values.hasNext():
        yield values.next()


def field(classes: Any, owner: str, name: str) -> Any:
    """A field by the name of its class: reflection on an object would load classes that may be missing."""
    field = classes.java.lang.Class.forName(owner).getDeclaredField(name)
    field.setAccessible(True)
    return field


def elements(collection: Any) -> list[Any]:
    """The elements of a Java collection.

    Iteration by Python ends with an exception of the JVM, which PySpark compares with each of its classes: twenty round trips.
    """
    array = collection.toArray()
    return [array[number] for number in range(len(array))]


def java_values(mapping: Any) -> Any:
    """The values of a Java map as a collection of Java; py4j's own `values` makes a round trip for each."""
    from py4j.java_gateway import get_method

    return get_method(mapping, "values")()


PACKAGES = frozenset({"pyspark", "py4j"})

_modules: dict[str, ModuleType] = {}


def restore_modules() -> None:
    """Restore the modules that a task removed or replaced. Importing them again would create other classes and state."""
    for name, module in _modules.items():
        if sys.modules.get(name) is not module:
            sys.modules[name] = module
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    _modules.update({name: module for name, module in loaded.items() if name not in _modules})


class PythonSide:
    """The attributes of the Python objects of a SparkContext and of its first session."""

    def __init__(self, base: "SparkSession") -> None:
        restore_modules()
        context: Any = base.sparkContext
        self._states = [(target, dict(vars(target))) for target in (base, context)]
        self._environment = dict(context.environment)
        self.accumulators = context._accumulatorServer
        _ignore_end_of_jvm(self.accumulators)

    def restore(self) -> None:
        """Restore the attributes."""
        for target, state in self._states:
            vars(target).clear()
            vars(target).update(state)
            if "environment" in state:
                target.environment = dict(self._environment)

    @property
    def broken(self) -> str | None:
        """The state that cannot be restored; None if everything can."""
        return "a task shut down the server of accumulators" if self.accumulators.server_shutdown else None


def _ignore_end_of_jvm(server: Any) -> None:
    """Ignore the closed connection when the JVM ends, for which the server would print a stack trace."""
    handle_error = server.handle_error

    def handle(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            handle_error(request, address)

    server.handle_error = handle


def keep_texts(error: BaseException) -> None:
    """Store the current messages of `error` and its causes, so that they do not need the JVM any more."""
    for link in chain(error):
        if type(link).__module__.partition(".")[0] in PACKAGES:
            _keep_text(link)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and all of its causes."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        link = left.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            left += [link.__cause__, link.__context__, *(link.exceptions if isinstance(link, BaseExceptionGroup) else ())]


def is_interruption(error: BaseException) -> bool:
    """Whether a timeout or a stop is among its causes; py4j wraps an interruption of its calls."""
    return any(isinstance(link, TaskTimeout | TaskStopped) for link in chain(error))


def _keep_text(error: BaseException) -> None:
    try:
        text = str(error)
    except Exception:
        text = str(getattr(error, "errmsg", None) or getattr(error, "_desc", None) or "the message is lost, since the JVM ended")
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda _: text}
    error.__class__ = type(kind.__name__, (kind,), names)
