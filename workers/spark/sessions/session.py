"""The session of one task in a warm JVM, and its cleanup: the next task finds nothing of it."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.process.guard import ENDING_S, Threads
from workers.spark import causes
from workers.spark.sessions import shared_state
from workers.spark.sessions.jvm_state import CANCEL_S, PAUSE_S, State
from workers.spark.sessions.session_pool import ANSWER_S, JVM_ERROR, JVM_FAILED, WarmJvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The message of py4j for a call without an answer. Errors of the JVM itself have more lines.
NO_ANSWER = re.compile(r"An error occurred while calling \S+")


@dataclass(frozen=True, slots=True)
class Begun:
    """The session of one task, and the thread of the JVM in which its calls run."""

    session: "SparkSession"
    thread: Any
    #: The threads of this process.
    threads: Threads


def begin(warm: WarmJvm, own: Mapping[str, str], *, name: str) -> Begun:
    """Start a new session with the keys of `own`, and make it current; `name` is the group and description of its jobs."""
    warm.jvm.clear_output()
    if warm.state is None:
        warm.state = State(warm)
    session = warm.base.newSession()
    for key, value in own.items():
        session.conf.set(key, value)
    _make_current(warm, session)
    session.sparkContext.setJobGroup(name, name, interruptOnCancel=True)
    return Begun(session, warm.classes.java.lang.Thread.currentThread(), Threads())


@contextlib.contextmanager
def until_end(warm: WarmJvm, begun: Begun) -> Iterator["SparkSession"]:
    """The session of a task. After the block the shared state is restored, or the JVM is marked unfit.

    The work of an interrupted task is cancelled, and the JVM is unfit if that fails. Threads that waited for this work, such as
    those that write DataFrames, get as long to end.
    """
    ending_s = ENDING_S
    try:
        yield begun.session
    except BaseException as error:
        shared_state.restore_modules()
        if interrupted(error):
            ending_s = CANCEL_S
            _drop_connection(warm)
            if not _cancelled(warm, begun.thread):
                warm.unfit = f"it did not cancel an interrupted task within {CANCEL_S:g} s"
        elif isinstance(error, Exception) and JVM_ERROR.search(_message(warm, error)):
            warm.unfit = JVM_FAILED
        raise
    finally:
        if warm.unfit is None and begun.threads.left(ending_s):
            warm.unfit = "a thread of an ended task may still use it"
        _close(warm)


@contextlib.contextmanager
def opened(warm: WarmJvm, own: Mapping[str, str], *, name: str) -> Iterator["SparkSession"]:
    """`begin` and `until_end` together."""
    with until_end(warm, begin(warm, own, name=name)) as session:
        yield session


def interrupted(error: BaseException) -> bool:
    """Whether `error` was caused by a timeout, a stop, or a broken connection to the JVM."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    if shared_state.is_interruption(error):
        return True
    return any(
        isinstance(link, Py4JNetworkError) or (type(link) is Py4JError and NO_ANSWER.fullmatch(str(link)) is not None)
        for link in shared_state.chain(error)
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


def _close(warm: WarmJvm) -> None:
    """Clean up after a task. An error here ends the JVM, and does not fail the task."""
    cleaned = False
    try:
        if warm.unfit is None and warm.jvm.alive:
            with warm.jvm.must_answer(ANSWER_S):
                _clean(warm)
        cleaned = True
    except Exception as error:
        warm.unfit = f"it could not be cleaned after a task ({causes.first_line(error)})"
    finally:
        if not cleaned and warm.unfit is None:
            warm.unfit = "its cleanup after a task was interrupted"
    warm.jvm.settle()
    # This also ends the thread of the JVM behind it, with its local properties, job group and active session.
    _drop_connection(warm)
    if warm.unfit is None and warm.jvm.has_lost_connection:
        warm.unfit = "a task has closed a connection to it"


def _clean(warm: WarmJvm) -> None:
    shared_state.restore_modules()
    warm.python.restore()
    warm.levels.restore()
    if warm.stopped:
        # The next task gets a new SparkContext.
        contexts = getattr(getattr(warm.classes.org.apache.spark, "SparkContext$"), "MODULE$")
        if contexts.getActive().isDefined():
            warm.unfit = "a task started a SparkContext of its own"
        return
    warm.context.cancelAllJobs()
    warm.state.restore()
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
