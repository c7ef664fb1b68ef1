"""The warm JVMs of a pool process: one for each configuration, as long as it is sound, young and small.

A task may leave a JVM in any state. An error while a JVM is taken or released ends that JVM, and does not fail the next task.
"""

import contextlib
import gc
import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.exceptions import FailTask, PacelineError
from scheduler.settings.sections import Spark
from workers.process.logs import worker_log
from workers.spark import causes, conf
from workers.spark.sessions import shared_state
from workers.spark.sessions.jvm import Jvm, JvmError
from workers.spark.sessions.shared_state import LogLevels, PythonSide, restore_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Errors after which a JVM may be unusable, such as out of memory, or classes that did not load.
JVM_ERROR = re.compile(r"\bjava\.lang\.[A-Z]\w*Error\b")
#: Tasks between two garbage collections of Python, see `release`.
COLLECT_EVERY = 10
#: Seconds that a JVM may take to create a session, or to be cleaned up; both usually take milliseconds.
ANSWER_S = 20.0
JVM_FAILED = "it reported an error of the JVM itself"


@dataclass(slots=True, eq=False)
class WarmJvm:
    """A warm JVM, its configuration, and the session from which all others are created."""

    conf: Mapping[str, str]
    jvm: Jvm
    base: Any = None
    #: The objects inside the JVM, because a task can change the Python objects for them, and each use would be a round trip.
    context: Any = field(init=False)
    session: Any = field(init=False)
    bus: Any = field(init=False)
    status: Any = field(init=False)
    python_factories: Any = field(init=False)
    #: What the sessions of the SparkContext share, as it was before the first: see jvm_state.State.
    state: Any = field(init=False)
    python: PythonSide = field(init=False)
    levels: LogLevels = field(init=False)
    started_at: float = field(default_factory=time.monotonic)
    tasks: int = 0
    #: Why it must not be used again.
    unfit: str | None = None
    #: The keys and values of tasks that were already checked.
    checked: set[tuple[str, str]] = field(default_factory=set)

    @property
    def classes(self) -> Any:
        """The classes of the JVM, by their names."""
        return self.jvm.names

    def renew(self) -> None:
        """Start a SparkContext, and the session from which all others are created."""
        self.base = base = _session(self)
        self.context, self.session = base.sparkContext._jsc.sc(), base._jsparkSession
        self.bus, self.status = self.context.listenerBus(), self.context.statusStore()
        self.python_factories = shared_state.python_factories(self.classes, self.context)
        self.state = None
        self.python = PythonSide(base)
        with self.jvm.refusing_tables():
            self.session.sharedState().externalCatalog()  # creates the folder, with its first use

    @property
    def has_local_executors(self) -> bool:
        """Whether tasks of Spark run in this JVM."""
        return self.conf["spark.master"].startswith("local") and not self.conf["spark.master"].startswith("local-")

    @property
    def stopped(self) -> bool:
        """Whether the SparkContext was stopped."""
        return bool(self.context.isStopped())

    def reason_to_end(self, limits: Spark) -> str | None:
        """Why it has served long enough; None if it can serve more tasks."""
        if self.unfit is not None or not self.jvm.alive:
            return self.unfit or "it has ended"
        if limits.max_tasks_per_jvm and self.tasks >= limits.max_tasks_per_jvm:
            return f"it has run {self.tasks} tasks (spark.max_tasks_per_jvm)"
        if time.monotonic() - self.started_at >= limits.max_jvm_age:
            return f"it is older than {limits.max_jvm_age:g} s (spark.max_jvm_age)"
        return None

    def full(self, limits: Spark) -> str | None:
        """Why its heap is too full, or None. It collects garbage only if the heap looks full."""
        heap = self.classes.java.lang.management.ManagementFactory.getMemoryMXBean()
        for collect in (False, True):
            if collect:
                heap.gc()
            usage = heap.getHeapMemoryUsage()
            used, most = usage.getUsed(), usage.getMax()
            if used <= limits.max_jvm_heap * most:
                return None
        return f"it uses {used / 1e6:.0f} of {most / 1e6:.0f} MB after a collection (spark.max_jvm_heap)"

    def check(self, own: Mapping[str, str]) -> None:
        """FailTask for a value that is not valid for its key."""
        for pair in own.items():
            if pair not in self.checked:
                self._check(*pair)
                self.checked.add(pair)

    def _check(self, key: str, value: str) -> None:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        entry = self.classes.org.apache.spark.internal.config.ConfigEntry.findEntry(key)
        if entry is None:  # a key that only a library defines
            return
        try:
            entry.valueConverter().apply(value)
        except (Py4JJavaError, PySparkException) as error:
            raise FailTask(f"The conf {key} cannot be {value!r}: {causes.sentence(str(error))}") from None


_pool: dict[frozenset[tuple[str, str]], WarmJvm] = {}
_active: WarmJvm | None = None


def take(settings: Mapping[str, str], own: Mapping[str, str], limits: Spark, options: Sequence[str] = ()) -> WarmJvm:
    """The JVM for this configuration, started if there is no usable one. PySpark uses it from now on."""
    key = frozenset(settings.items())
    warm = _pool.pop(key, None)
    if warm is not None and not _is_fit(warm, limits):
        warm = None
    if warm is None:
        while len(_pool) >= max(1, limits.warm_jvms):
            oldest = next(iter(_pool))
            end(_pool.pop(oldest), "another configuration needs its place (spark.warm_jvms)")
        warm = start(settings, own, limits, options)
    _pool[key] = warm
    return warm


def _is_fit(warm: WarmJvm, limits: Spark) -> bool:
    """Whether a pooled JVM can serve another task. If so, it gets a SparkContext if it has none; if not, it is ended."""
    try:
        why = warm.reason_to_end(limits)
        if why is None:
            with warm.jvm.must_answer(ANSWER_S):
                activate(warm)
                if warm.stopped:
                    warm.renew()
                why = shared_state.why_python_ended(warm.classes, warm.python_factories)
        if why is None:
            return True
    except BaseException as error:
        if shared_state.is_interruption(error) or not isinstance(error, Exception):
            end(warm, "taking it for another task was interrupted")
            raise
        why = f"it could not be taken for another task ({causes.first_line(error)})"
    end(warm, why)
    return False


def start(settings: Mapping[str, str], own: Mapping[str, str], limits: Spark, options: Sequence[str] = ()) -> WarmJvm:
    """Start a JVM with a SparkContext. `own` are the author's keys in its configuration; `options` are for Java.

    JvmError or MasterUnreachableError, with the cause in one sentence, if it does not start.
    """
    correct = "spark.master in the conf of this task"
    conf.check_master(settings["spark.master"], timeout_s=limits.submit_timeout, correct=correct)
    restore_modules()
    warm = WarmJvm(settings, Jvm(settings, options))
    try:
        activate(warm)
        warm.check(own)
        warm.levels = LogLevels(warm.classes)
        warm.renew()
        shared_state.end_idle_threads_soon(warm.classes)
    except BaseException as error:
        shared_state.keep_texts(error)
        failure = _failure(warm, error)
        end(warm)
        if failure is None:
            raise
        raise failure from None
    return warm


def _failure(warm: WarmJvm, error: BaseException) -> JvmError | None:
    """The error to raise if there is no SparkContext, without the Java stack, which is in the log; None to raise `error`."""
    if isinstance(error, PacelineError) or not isinstance(error, Exception) or shared_state.is_interruption(error):
        return None
    return JvmError(f"Spark did not start: {causes.of_error(error, warm.jvm.recent_output()) or causes.first_line(error)}")


def drop(warm: WarmJvm, why: str) -> None:
    """Remove a JVM from the pool and end it."""
    for key in [key for key, pooled in _pool.items() if pooled is warm]:
        del _pool[key]
    end(warm, why)


def release(warm: WarmJvm, limits: Spark) -> None:
    """Release a JVM after a task; end it if it has served long enough."""
    warm.tasks += 1
    if warm.tasks % COLLECT_EVERY == 0:
        # The Python object for a Java object is in a reference cycle once a method of it was called, and keeps the Java object,
        # even whole sessions, in the JVM. Python's own collection would free it only after thousands of tasks.
        gc.collect()
    if JVM_ERROR.search(warm.jvm.recent_output()):
        warm.unfit = JVM_FAILED
    why = warm.reason_to_end(limits)
    if why is None:
        try:
            with warm.jvm.must_answer(ANSWER_S):
                why = warm.full(limits)
        except Exception as error:
            why = f"its heap could not be checked ({type(error).__name__})"
    if why is not None:
        drop(warm, why)


def shutdown() -> None:
    """End all JVMs; the next task starts a new one."""
    while _pool:
        end(_pool.popitem()[1])


def end(warm: WarmJvm, why: str | None = None) -> None:
    """End a JVM, and remove it from PySpark."""
    global _active  # noqa: PLW0603 - PySpark supports one JVM per process
    if why is not None:
        worker_log.info("ending the JVM %d of a Spark configuration: %s", warm.jvm.pid, why)
    with contextlib.suppress(Exception):
        _close_accumulators(warm)
    with contextlib.suppress(Exception):
        warm.jvm.stop()
    if _active is warm:
        _active = None
        _set_jvm_of_pyspark(None)


def _close_accumulators(warm: WarmJvm) -> None:
    """Shut down PySpark's server of accumulators, which would otherwise keep running."""
    server = warm.python.accumulators if warm.base is not None else None
    if server is not None:
        threading.Thread(target=server.shutdown, name="close-accumulators", daemon=True).start()


def activate(warm: WarmJvm) -> None:
    """Make this the JVM of PySpark, which supports one per process."""
    global _active  # noqa: PLW0603
    restore_modules()
    # It would log each connection in the log of the task.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if warm.base is not None:
        warm.python.restore()
    if _active is warm:
        # A task may have changed it.
        _set_jvm_of_pyspark(warm)
        return
    gc.unfreeze()
    _forget_java_objects()
    # Exclude the objects that exist now, so that later collections take only milliseconds.
    gc.collect()
    gc.freeze()
    _active = warm
    _set_jvm_of_pyspark(warm)


def detach() -> None:
    """Take the JVM from PySpark, which refuses a session on a Connect server beside it. `activate` gives it back."""
    _set_jvm_of_pyspark(None)


def _set_jvm_of_pyspark(warm: WarmJvm | None) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    base = None if warm is None else warm.base
    SparkSession._instantiatedSession = SparkSession._activeSession = base
    SparkContext._active_spark_context = None if base is None else base.sparkContext
    SparkContext._gateway = None if warm is None else warm.jvm.gateway
    SparkContext._jvm = None if warm is None else warm.jvm.gateway.jvm


def _forget_java_objects() -> None:
    """Reset UDFs in modules: each remembers its object in the JVM of its first use, which means something else in another JVM."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.sql.udtf import UserDefinedTableFunction

    for candidate in gc.get_objects():
        if type(candidate) is UserDefinedFunction:
            candidate._judf_placeholder = None
        elif type(candidate) is UserDefinedTableFunction:
            candidate._judtf_placeholder = None


def _session(warm: WarmJvm) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._active_spark_context = None
    SparkContext._ensure_initialized(gateway=warm.jvm.gateway)
    session = SparkSession(SparkContext(conf=SparkConf().setAll(list(warm.conf.items()))))
    # This creates its own listeners now, so that they do not count as those of the first task.
    session._jsparkSession.sharedState().statusStore()
    return session
