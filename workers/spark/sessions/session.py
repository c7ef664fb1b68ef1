"""A session of a warm JVM for one task, and that nothing of it is left to the next."""

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
from workers.spark.sessions import python_side, words
from workers.spark.sessions.session_pool import ANSWER_S, JVM_ERROR, JVM_FAILED, Warm

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
        self._hadoop = context.hadoopConfiguration().getPropsWithPrefix("")

    def restore(self) -> None:
        """Take back what can be taken back; a JVM with the rest is unfit."""
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
        """What a task did that cannot be taken back; None for nothing."""
        warm, context = self._warm, self._warm.context
        if _added(context) != self._added:
            return "a task added files or jars to its SparkContext, which cannot be taken away again"
        if context.conf().toDebugString() != warm.shared_conf:
            return "a task changed the configuration that all sessions share"
        if not warm.session.sharedState().externalCatalog().databaseExists("default"):
            return "a task dropped the database default"
        return None

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


@dataclass(frozen=True, slots=True)
class Begun:
    """The session of one task, what stood before it, and the thread of the JVM that its calls are made in."""

    session: "SparkSession"
    before: State
    thread: Any


def begin(warm: Warm, own: Mapping[str, str], *, name: str) -> Begun:
    """A new session with the keys of `own`, the current one from now on; `name` is the group and the description of its jobs."""
    warm.jvm.forget_said()
    before = State(warm)
    session = warm.base.newSession()
    for key, value in own.items():
        session.conf.set(key, value)
    _make_current(warm, session)
    session.sparkContext.setJobGroup(name, name, interruptOnCancel=True)
    return Begun(session, before, warm.classes.java.lang.Thread.currentThread())


@contextlib.contextmanager
def until_end(warm: Warm, begun: Begun) -> Iterator["SparkSession"]:
    """The session while the block runs; afterwards all that sessions share is as before, or the JVM is unfit.

    What an interrupted task had asked for is called off. The JVM is unfit too if it does not let go of that.
    """
    try:
        yield begun.session
    except BaseException as error:
        python_side.restore_modules()
        if interrupted(error):
            _drop_connection(warm)
            if not _called_off(warm, begun.thread):
                warm.unfit = f"it did not let go of an interrupted task within {CANCEL_S:g} s"
        elif isinstance(error, Exception) and JVM_ERROR.search(_said(warm, error)):
            warm.unfit = JVM_FAILED
        raise
    finally:
        _close(warm, begun.before)


@contextlib.contextmanager
def opened(warm: Warm, own: Mapping[str, str], *, name: str) -> Iterator["SparkSession"]:
    """Both in one."""
    with until_end(warm, begin(warm, own, name=name)) as session:
        yield session


def interrupted(error: BaseException) -> bool:
    """Whether a timeout or a stop is at the root of `error`, or the connection to the JVM is broken."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    if words.is_interruption(error):
        return True
    return any(
        isinstance(one, Py4JNetworkError) or (type(one) is Py4JError and NO_ANSWER.fullmatch(str(one)) is not None)
        for one in words.chain(error)
    )


def _make_current(warm: Warm, session: "SparkSession") -> None:
    """`SparkSession.builder.getOrCreate()` and `getActiveSession()` inside the task give its own session."""
    from pyspark.sql import SparkSession

    warm.classes.SparkSession.setDefaultSession(session._jsparkSession)
    warm.classes.SparkSession.setActiveSession(session._jsparkSession)
    SparkSession._instantiatedSession = SparkSession._activeSession = session


def _said(warm: Warm, error: Exception) -> str:
    """What an exception says; those of PySpark ask the JVM for it."""
    with contextlib.suppress(Exception), warm.jvm.must_answer(ANSWER_S):
        return str(error)
    return ""


def _close(warm: Warm, before: State) -> None:
    """Whatever goes wrong here is the JVM's end, and not the fault of the task that has ended."""
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
            warm.unfit = "its cleaning after a task was interrupted"
    warm.jvm.settle()
    # The thread of the JVM behind it goes too, and with it local properties, job group and active session.
    _drop_connection(warm)


def _clean(warm: Warm, before: State) -> None:
    python_side.restore_modules()
    warm.python.restore()
    warm.levels.restore()
    if warm.stopped:
        # The next task gets a new one.
        contexts = getattr(getattr(warm.classes.org.apache.spark, "SparkContext$"), "MODULE$")
        if contexts.getActive().isDefined():
            warm.unfit = "a task started a SparkContext of its own"
        return
    warm.context.cancelAllJobs()
    before.restore()
    _make_current(warm, warm.base)


def _drop_connection(warm: Warm) -> None:
    """Close this thread's connection to the JVM; the next call opens another."""
    client = warm.jvm.gateway._gateway_client
    connection = client.get_thread_connection()
    if connection is not None:
        with contextlib.suppress(ValueError):
            client.deque.remove(connection)
        with contextlib.suppress(Exception):  # of a connection that a task has closed
            connection.close()


def _called_off(warm: Warm, thread: Any) -> bool:
    """Whether the JVM has cancelled the jobs and the call that was cut: asked by a thread of its own, which may be let go."""
    done = threading.Event()

    def call_off() -> None:
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

    threading.Thread(target=call_off, name="call-off", daemon=True).start()
    deadline = time.monotonic() + CANCEL_S
    while warm.jvm.alive and time.monotonic() < deadline:
        if done.wait(PAUSE_S):
            return True
    return False


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
