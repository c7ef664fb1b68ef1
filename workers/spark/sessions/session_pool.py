"""The warm JVMs of a pool child: one for each configuration, as long as it is sound, young and small.

A task may leave a JVM in any state. Whatever goes wrong while it is taken or returned ends it, and is not the next task's fault.
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

from scheduler.exceptions import FailTask, PacelineError
from scheduler.settings.sections import Spark
from workers.logs import worker_log
from workers.spark import causes, reachable
from workers.spark.sessions import python_daemons, threads, words
from workers.spark.sessions.jvm import Jvm, JvmError
from workers.spark.sessions.log_levels import LogLevels
from workers.spark.sessions.python_side import PythonSide, restore_modules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What a JVM may not be the same after: memory that ran out, classes that did not load.
JVM_ERROR = re.compile(r"\bjava\.lang\.[A-Z]\w*Error\b")
#: Tasks after which Python looks for garbage, see `release`.
COLLECT_EVERY = 10
#: Seconds that a JVM may take to give a session, and to be cleaned after a task; both take some milliseconds.
ANSWER_S = 20.0
DEFAULTS = Spark()
JVM_FAILED = "it reported an error of the JVM itself"


@dataclass(slots=True, eq=False)
class Warm:
    """A JVM, what it was started with, and the session that all others are made from."""

    conf: Mapping[str, str]
    jvm: Jvm
    base: Any = None
    #: The objects inside the JVM: Python's side of them is the task's to change.
    context: Any = field(init=False)
    session: Any = field(init=False)
    shared_conf: str = field(init=False)
    python: PythonSide = field(init=False)
    levels: LogLevels = field(init=False)
    started_at: float = field(default_factory=time.monotonic)
    tasks: int = 0
    #: Why it is not to be used again.
    unfit: str | None = None
    #: Keys of tasks that were looked at already.
    checked: set[tuple[str, str]] = field(default_factory=set)

    @property
    def classes(self) -> Any:
        """Where the classes of the JVM are looked up."""
        return self.jvm.gateway.jvm

    def renew(self) -> None:
        """Start a SparkContext, and the session that all others are made from."""
        self.base = base = _session(self)
        self.context, self.session = base.sparkContext._jsc.sc(), base._jsparkSession
        self.shared_conf = self.context.conf().toDebugString()
        self.python = PythonSide(base)

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped the SparkContext."""
        return bool(self.context.isStopped())

    def worn(self, limits: Spark) -> str | None:
        """Why it has served long enough; None while it has not."""
        if self.unfit is not None or not self.jvm.alive:
            return self.unfit or "it has ended"
        if limits.max_tasks_per_jvm and self.tasks >= limits.max_tasks_per_jvm:
            return f"it has run {self.tasks} tasks (spark.max_tasks_per_jvm)"
        if time.monotonic() - self.started_at >= limits.max_jvm_age:
            return f"it is older than {limits.max_jvm_age:g} s (spark.max_jvm_age)"
        return None

    def full(self, limits: Spark) -> str | None:
        """Why its heap is too full; a collection is asked for only when it looks so."""
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
        """FailTask for a value that its key does not take."""
        for pair in own.items():
            if pair not in self.checked:
                self._check(*pair)
                self.checked.add(pair)

    def _check(self, key: str, value: str) -> None:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        entry = self.classes.org.apache.spark.internal.config.ConfigEntry.findEntry(key)
        if entry is None:  # a key that only a library knows
            return
        try:
            entry.valueConverter().apply(value)
        except (Py4JJavaError, PySparkException) as error:
            raise FailTask(f"The conf {key} cannot be {value!r}: {causes.sentence(str(error))}") from None


_kept: dict[frozenset[tuple[str, str]], Warm] = {}
_active: Warm | None = None


def take(settings: Mapping[str, str], own: Mapping[str, str], limits: Spark, options: Sequence[str] = ()) -> Warm:
    """The JVM for this configuration, started if there is none that is fit; it is the one that PySpark uses from now on."""
    key = frozenset(settings.items())
    found = _kept.pop(key, None)
    if found is not None and not _is_fit(found, limits):
        found = None
    if found is None:
        while len(_kept) >= max(1, limits.warm_jvms):
            oldest = next(iter(_kept))
            end(_kept.pop(oldest), "another configuration needs its place (spark.warm_jvms)")
        found = start(settings, own, options, limits)
    _kept[key] = found
    return found


def _is_fit(found: Warm, limits: Spark) -> bool:
    """Whether a JVM that was kept can serve another task; it has a SparkContext then. It is ended if not."""
    try:
        why = found.worn(limits)
        if why is None:
            with found.jvm.must_answer(ANSWER_S):
                activate(found)
                if found.stopped:
                    found.renew()
                why = python_daemons.ended(found.classes, found.context)
        if why is None:
            return True
    except BaseException as error:
        if words.is_interruption(error) or not isinstance(error, Exception):
            end(found, "taking it for another task was interrupted")
            raise
        why = f"it could not be taken for another task ({causes.first_line(error)})"
    end(found, why)
    return False


def start(settings: Mapping[str, str], own: Mapping[str, str], options: Sequence[str] = (), limits: Spark = DEFAULTS) -> Warm:
    """A JVM with its SparkContext; `own` are the keys among its configuration that are the author's, `options` are for Java.

    JvmError and MasterUnreachableError say in one sentence what kept it from starting.
    """
    correct = "spark.master in the conf of this task"
    reachable.check_master(settings["spark.master"], timeout_s=limits.submit_timeout, correct=correct)
    restore_modules()
    made = Warm(settings, Jvm(settings, options))
    try:
        activate(made)
        made.check(own)
        made.levels = LogLevels(made.classes)
        made.renew()
        threads.let_go_soon(made.classes)
    except BaseException as error:
        words.keep(error)
        failure = _failure(made, error)
        end(made)
        if failure is None:
            raise
        raise failure from None
    return made


def _failure(made: Warm, error: BaseException) -> JvmError | None:
    """Why no SparkContext came about, without the stack of Java, which the JVM has printed; None if `error` is to be raised."""
    if isinstance(error, PacelineError) or not isinstance(error, Exception) or words.is_interruption(error):
        return None
    return JvmError(f"Spark did not start: {causes.of_error(error, made.jvm.said()) or causes.first_line(error)}")


def drop(warm: Warm, why: str) -> None:
    """End one whatever it was to serve still."""
    for key in [key for key, one in _kept.items() if one is warm]:
        del _kept[key]
    end(warm, why)


def release(warm: Warm, limits: Spark) -> None:
    """A task has ended: end the JVM if it has served long enough."""
    warm.tasks += 1
    if warm.tasks % COLLECT_EVERY == 0:
        # Python's side of a Java object holds itself in a cycle as soon as a method of it was called, and keeps the object in the
        # JVM: whole sessions. Python by itself would look for such cycles only after some thousands of tasks.
        gc.collect()
    if JVM_ERROR.search(warm.jvm.said()):
        warm.unfit = JVM_FAILED
    why = warm.worn(limits)
    if why is None:
        try:
            with warm.jvm.must_answer(ANSWER_S):
                why = warm.full(limits)
        except Exception as error:
            why = f"it did not say how full its heap is ({type(error).__name__})"
    if why is not None:
        drop(warm, why)


def shutdown() -> None:
    """End all of them; the next task starts another."""
    while _kept:
        end(_kept.popitem()[1])


def end(warm: Warm, why: str | None = None) -> None:
    """End one, and let PySpark forget it."""
    global _active  # noqa: PLW0603 - PySpark knows one JVM a process
    if why is not None:
        worker_log.info("ending the JVM %d of a Spark configuration: %s", warm.jvm.pid, why)
    with contextlib.suppress(Exception):
        _close_accumulators(warm)
    with contextlib.suppress(Exception):
        warm.jvm.stop()
    if _active is warm:
        _active = None
        _let_pyspark_use(None)


def _close_accumulators(warm: Warm) -> None:
    """PySpark's server of accumulators would live on."""
    server = warm.python.accumulators if warm.base is not None else None
    if server is not None:
        threading.Thread(target=server.shutdown, name="close-accumulators", daemon=True).start()


def activate(warm: Warm) -> None:
    """Let PySpark, which knows one JVM a process, use this one."""
    global _active  # noqa: PLW0603
    restore_modules()
    # In a task's log it would tell of each connection that it opens or closes.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if warm.base is not None:
        warm.python.restore()
    if _active is warm:
        # What it knows is the task's to change.
        _let_pyspark_use(warm)
        return
    gc.unfreeze()
    _forget_java_objects()
    # What is here now stays: without it, looking for garbage takes milliseconds.
    gc.collect()
    gc.freeze()
    _active = warm
    _let_pyspark_use(warm)


def _let_pyspark_use(warm: Warm | None) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    base = None if warm is None else warm.base
    SparkSession._instantiatedSession = SparkSession._activeSession = base
    SparkContext._active_spark_context = None if base is None else base.sparkContext
    SparkContext._gateway = None if warm is None else warm.jvm.gateway
    SparkContext._jvm = None if warm is None else warm.jvm.gateway.jvm


def _forget_java_objects() -> None:
    """A UDF of a module remembers its object of the JVM that it was used in first; in another JVM that is something else."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.sql.udtf import UserDefinedTableFunction

    for one in gc.get_objects():
        if type(one) is UserDefinedFunction:
            one._judf_placeholder = None
        elif type(one) is UserDefinedTableFunction:
            one._judtf_placeholder = None


def _session(warm: Warm) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._active_spark_context = None
    SparkContext._ensure_initialized(gateway=warm.jvm.gateway)
    made = SparkSession(SparkContext(conf=SparkConf().setAll(list(warm.conf.items()))))
    # It brings listeners of its own, which are not to be taken for those of the first task.
    made._jsparkSession.sharedState().statusStore()
    return made
