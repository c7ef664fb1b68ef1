"""The session of one task in a warm JVM, and its cleanup: the next task finds nothing of it."""

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.spark import causes
from workers.spark.sessions import error_texts, python_side
from workers.spark.sessions.session_pool import ANSWER_S, JVM_ERROR, JVM_FAILED, WarmJvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds in which a JVM must cancel the work of an interrupted task; then it is ended. The task stopper allows ten.
CANCEL_S = 4.0
PAUSE_S = 0.02
#: The message of py4j for a call without an answer. Errors of the JVM itself have more lines.
NO_ANSWER = re.compile(r"An error occurred while calling \S+")


class State:
    """The state that all sessions of a JVM share and a task can change, before a task."""

    def __init__(self, warm: WarmJvm) -> None:
        self._warm = warm
        context = warm.context
        self._listeners = self._identities()
        self._added = _added(context)
        self._hadoop = context.hadoopConfiguration().getPropsWithPrefix("")

    def restore(self) -> None:
        """Restore the shared state; a JVM is unfit if some of it cannot be restored."""
        warm, context = self._warm, self._warm.context
        shared = warm.session.sharedState()
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
        self._restore_hadoop(context.hadoopConfiguration())
        _restore_python(warm)
        warm.unfit = self._lasting() or warm.python.broken

    def _lasting(self) -> str | None:
        """The change of a task that cannot be restored; None if nothing."""
        warm, context = self._warm, self._warm.context
        if _added(context) != self._added:
            return "a task added files or jars to its SparkContext, which cannot be removed"
        if context.conf().toDebugString() != warm.shared_conf:
            return "a task changed the configuration that all sessions share"
        if not warm.session.sharedState().externalCatalog().databaseExists("default"):
            return "a task dropped the database default"
        return None

    def _restore_hadoop(self, hadoop: Any) -> None:
        """Restore the Hadoop configuration. The JVM compares it, since there are a thousand keys and each call is a round trip."""
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
        """The listeners of the context in all event queues, by identity."""
        listeners = self._warm.context.listenerBus().listeners()
        identity = self._warm.classes.java.lang.System.identityHashCode
        return {identity(listener): listener for listener in (listeners.get(number) for number in range(listeners.size()))}


@dataclass(frozen=True, slots=True)
class Begun:
    """The session of one task, the state before it, and the thread of the JVM in which its calls run."""

    session: "SparkSession"
    before: State
    thread: Any


def begin(warm: WarmJvm, own: Mapping[str, str], *, name: str) -> Begun:
    """Start a new session with the keys of `own`, and make it current; `name` is the group and description of its jobs."""
    warm.jvm.clear_output()
    before = State(warm)
    session = warm.base.newSession()
    for key, value in own.items():
        session.conf.set(key, value)
    _make_current(warm, session)
    session.sparkContext.setJobGroup(name, name, interruptOnCancel=True)
    return Begun(session, before, warm.classes.java.lang.Thread.currentThread())


@contextlib.contextmanager
def until_end(warm: WarmJvm, begun: Begun) -> Iterator["SparkSession"]:
    """The session of a task. After the block the shared state is restored, or the JVM is marked unfit.

    The work of an interrupted task is cancelled, and the JVM is unfit if that fails.
    """
    try:
        yield begun.session
    except BaseException as error:
        python_side.restore_modules()
        if interrupted(error):
            _drop_connection(warm)
            if not _cancelled(warm, begun.thread):
                warm.unfit = f"it did not cancel an interrupted task within {CANCEL_S:g} s"
        elif isinstance(error, Exception) and JVM_ERROR.search(_message(warm, error)):
            warm.unfit = JVM_FAILED
        raise
    finally:
        _close(warm, begun.before)


@contextlib.contextmanager
def opened(warm: WarmJvm, own: Mapping[str, str], *, name: str) -> Iterator["SparkSession"]:
    """`begin` and `until_end` together."""
    with until_end(warm, begin(warm, own, name=name)) as session:
        yield session


def interrupted(error: BaseException) -> bool:
    """Whether `error` was caused by a timeout, a stop, or a broken connection to the JVM."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    if error_texts.is_interruption(error):
        return True
    return any(
        isinstance(link, Py4JNetworkError) or (type(link) is Py4JError and NO_ANSWER.fullmatch(str(link)) is not None)
        for link in error_texts.chain(error)
    )


def _make_current(warm: WarmJvm, session: "SparkSession") -> None:
    """Make `SparkSession.builder.getOrCreate()` and `getActiveSession()` return this session."""
    from pyspark.sql import SparkSession

    warm.classes.SparkSession.setDefaultSession(session._jsparkSession)
    warm.classes.SparkSession.setActiveSession(session._jsparkSession)
    SparkSession._instantiatedSession = SparkSession._activeSession = session


def _message(warm: WarmJvm, error: Exception) -> str:
    """The message of an exception; for those of PySpark it comes from the JVM."""
    with contextlib.suppress(Exception), warm.jvm.must_answer(ANSWER_S):
        return str(error)
    return ""


def _close(warm: WarmJvm, before: State) -> None:
    """Clean up after a task. An error here ends the JVM, and does not fail the task."""
    cleaned = False
    try:
        if warm.unfit is None and warm.jvm.alive:
            with warm.jvm.must_answer(ANSWER_S):
                _clean(warm, before)
        cleaned = True
    except Exception as error:
        warm.unfit = f"it could not be cleaned after a task ({causes.first_line(error)})"
    finally:
        if not cleaned and warm.unfit is None:
            warm.unfit = "its cleanup after a task was interrupted"
    warm.jvm.settle()
    # This also ends the thread of the JVM behind it, with its local properties, job group and active session.
    _drop_connection(warm)


def _clean(warm: WarmJvm, before: State) -> None:
    python_side.restore_modules()
    warm.python.restore()
    warm.levels.restore()
    if warm.stopped:
        # The next task gets a new SparkContext.
        contexts = getattr(getattr(warm.classes.org.apache.spark, "SparkContext$"), "MODULE$")
        if contexts.getActive().isDefined():
            warm.unfit = "a task started a SparkContext of its own"
        return
    warm.context.cancelAllJobs()
    before.restore()
    _make_current(warm, warm.base)


def _drop_connection(warm: WarmJvm) -> None:
    """Close this thread's connection to the JVM; the next call opens another."""
    client = warm.jvm.gateway._gateway_client
    connection = client.get_thread_connection()
    if connection is not None:
        with contextlib.suppress(ValueError):
            client.deque.remove(connection)
        with contextlib.suppress(Exception):  # a task may have closed the connection
            connection.close()


def _cancelled(warm: WarmJvm, thread: Any) -> bool:
    """Cancel the jobs and the interrupted call, in a thread that may hang. Returns whether that succeeded in time."""
    done = threading.Event()

    def cancel() -> None:
        with contextlib.suppress(Exception):
            shared = warm.session.sharedState()
            while True:
                warm.context.cancelAllJobs()
                for query in list(shared.activeStreamingQueries().values()):
                    query.stop()
                tracker = warm.context.statusTracker()
                if not thread.isAlive() and not list(tracker.getActiveJobIds()):
                    done.set()
                    return
                time.sleep(PAUSE_S)

    threading.Thread(target=cancel, name="cancel", daemon=True).start()
    deadline = time.monotonic() + CANCEL_S
    while warm.jvm.alive and time.monotonic() < deadline:
        if done.wait(PAUSE_S):
            return True
    return False


def _added(context: Any) -> tuple[int, int, int]:
    return context.addedFiles().size(), context.addedJars().size(), context.addedArchives().size()


def _restore_python(warm: WarmJvm) -> None:
    from pyspark import SparkFiles, accumulators

    accumulators._accumulatorRegistry.clear()
    context = warm.base.sparkContext
    root = SparkFiles.getRootDirectory()
    sys.path[:] = [path for path in sys.path if path == root or not path.startswith(root)]
    context._python_includes.clear()
    for left in os.scandir(context._temp_dir):
        with contextlib.suppress(OSError):
            shutil.rmtree(left.path) if left.is_dir(follow_symlinks=False) else Path(left.path).unlink()
