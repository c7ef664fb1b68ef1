"""A session of a warm JVM for one task, and that nothing of it is left to the next."""

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.exceptions import TaskTimeout
from workers.outcome import TaskStopped
from workers.spark.warm.kept import JVM_ERROR, JVM_FAILED, Warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds in which a JVM has to let go of what an interrupted task asked for; then it is ended. The warden gives us ten.
CANCEL_S = 4.0
PAUSE_S = 0.02
#: What py4j raises for a call whose answer did not come, and then it forgets why; what the JVM says itself has more lines.
NO_ANSWER = re.compile(r"An error occurred while calling \S+")


class State:
    """What all sessions of a JVM share and a task may change, as it stood before."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm
        context = warm.context
        self._listeners = self._identities()
        self._added = _added(context)
        self._log = self._log_levels()
        self._hadoop = context.hadoopConfiguration().getPropsWithPrefix("")

    def restore(self) -> None:
        """Take back what can be taken back; a JVM with the rest is unfit."""
        warm, context = self._warm, self._warm.context
        shared = warm.base._jsparkSession.sharedState()
        for query in list(shared.activeStreamingQueries().values()):
            query.stop()
        shared.cacheManager().clearCache()
        if context.persistentRdds().nonEmpty():
            for persisted in list(warm.base.sparkContext._jsc.getPersistentRDDs().values()):
                persisted.unpersist(False)
        shared.globalTempViewManager().clear()
        for identity, listener in self._identities().items():
            if identity not in self._listeners:
                context.removeSparkListener(listener)
        if context.getCheckpointDir().isDefined():
            context.setCheckpointDir(None)
        if self._log_levels() != self._log:
            context.setLogLevel(self._log[0])
            # A level that was set lifts the one that Spark's shells keep to.
            getattr(self._logging(), "sparkShellThresholdLevel_$eq")(self._log[1])
        self._restore_hadoop(context.hadoopConfiguration())
        if _added(context) != self._added:
            warm.unfit = "a task added files or jars to its SparkContext, which cannot be taken away again"
        _restore_python(warm)

    def _restore_hadoop(self, hadoop: Any) -> None:
        """The differences are looked for inside the JVM: there are a thousand keys, and each question is a round trip."""
        now, before = hadoop.getPropsWithPrefix(""), self._hadoop
        if now.equals(before):
            return
        maps = self._warm.classes.java.util.HashMap
        changed, gone = maps(now), maps(before)
        changed.entrySet().removeAll(before.entrySet())
        gone.keySet().removeAll(now.keySet())
        for key in [*changed.keySet(), *gone.keySet()]:
            value = before.get(key)
            hadoop.unset(key) if value is None else hadoop.set(key, value)

    def _identities(self) -> dict[int, Any]:
        """The listeners of the context, of which each queue of events has some, by what tells one object from another."""
        listeners = self._warm.context.listenerBus().listeners()
        identity = self._warm.classes.java.lang.System.identityHashCode
        return {identity(one): one for one in (listeners.get(number) for number in range(listeners.size()))}

    def _log_levels(self) -> tuple[str, Any]:
        root = self._warm.classes.org.apache.logging.log4j.LogManager.getRootLogger()
        return root.getLevel().toString(), self._logging().sparkShellThresholdLevel()

    def _logging(self) -> Any:
        return getattr(getattr(self._warm.classes.org.apache.spark.internal, "Logging$"), "MODULE$")


@contextlib.contextmanager
def opened(warm: Warm, own: Mapping[str, str], *, name: str) -> Iterator["SparkSession"]:
    """A new session with the keys of `own`, current while the block runs; `name` is the group and the description of its jobs.

    What an interrupted task had asked for is called off. The JVM is unfit afterwards if it does not let go of that.
    """
    warm.jvm.forget_said()
    state = State(warm)
    session = warm.base.newSession()
    for key, value in own.items():
        session.conf.set(key, value)
    _make_current(session)
    session.sparkContext.setJobGroup(name, name, interruptOnCancel=True)
    thread = warm.classes.java.lang.Thread.currentThread()
    try:
        yield session
    except BaseException as error:
        if interrupted(error):
            _drop_connection(warm)
            if not _called_off(warm, thread):
                warm.unfit = f"it did not let go of an interrupted task within {CANCEL_S:g} s"
        elif isinstance(error, Exception) and JVM_ERROR.search(str(error)):
            warm.unfit = JVM_FAILED
        raise
    finally:
        _close(warm, state)


def interrupted(error: BaseException | None) -> bool:
    """Whether a timeout or a stop is at the root of `error`, or the connection to the JVM is broken."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, TaskTimeout | TaskStopped | Py4JNetworkError):
            return True
        if type(error) is Py4JError and NO_ANSWER.fullmatch(str(error)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _make_current(session: "SparkSession") -> None:
    """`SparkSession.builder.getOrCreate()` and `getActiveSession()` inside the task give its own session."""
    from pyspark.sql import SparkSession

    classes: Any = session.sparkContext._jvm
    classes.SparkSession.setDefaultSession(session._jsparkSession)
    classes.SparkSession.setActiveSession(session._jsparkSession)
    SparkSession._instantiatedSession = SparkSession._activeSession = session


def _close(warm: Warm, state: State) -> None:
    cleaned = False
    try:
        if warm.unfit is None and warm.jvm.alive and not warm.stopped:
            warm.context.cancelAllJobs()
            state.restore()
            _make_current(warm.base)
        cleaned = True
    except Exception as error:
        warm.unfit = f"it could not be cleaned after a task ({type(error).__name__})"
    finally:
        if not cleaned and warm.unfit is None:
            warm.unfit = "its cleaning after a task was interrupted"
    warm.jvm.settle()
    # The thread of the JVM behind it goes too, and with it local properties, job group and active session.
    _drop_connection(warm)


def _drop_connection(warm: Warm) -> None:
    """Close this thread's connection to the JVM; the next call opens another."""
    client = warm.jvm.gateway._gateway_client
    connection = client.get_thread_connection()
    if connection is not None:
        with contextlib.suppress(ValueError):
            client.deque.remove(connection)
        connection.close()


def _called_off(warm: Warm, thread: Any) -> bool:
    """Whether the JVM has cancelled the jobs and the call that was cut: asked by a thread of its own, which may be let go."""
    done = threading.Event()

    def call_off() -> None:
        with contextlib.suppress(Exception):
            shared = warm.base._jsparkSession.sharedState()
            while True:
                warm.context.cancelAllJobs()
                for query in list(shared.activeStreamingQueries().values()):
                    query.stop()
                tracker = warm.context.statusTracker()
                if not thread.isAlive() and not list(tracker.getActiveJobIds()):
                    done.set()
                    return
                time.sleep(PAUSE_S)

    threading.Thread(target=call_off, name="call-off", daemon=True).start()
    return done.wait(CANCEL_S)


def _added(context: Any) -> tuple[int, int, int]:
    return context.addedFiles().size(), context.addedJars().size(), context.addedArchives().size()


def _restore_python(warm: Warm) -> None:
    from pyspark import SparkFiles, accumulators

    accumulators._accumulatorRegistry.clear()
    context = warm.base.sparkContext
    root = SparkFiles.getRootDirectory()
    sys.path[:] = [path for path in sys.path if path == root or not path.startswith(root)]
    context._python_includes.clear()
    for left in os.scandir(context._temp_dir):
        with contextlib.suppress(OSError):
            shutil.rmtree(left.path) if left.is_dir(follow_symlinks=False) else Path(left.path).unlink()
