"""Structured streaming in a task: the query runs until the task is stopped, and then it is the query that stops first."""

import threading
from typing import Any

#: Seconds that a query may take to stop; after that its JVM is ended with the task, which its checkpoint allows for.
STOP_TIMEOUT_S = 6.0
#: Longest time, in seconds, in which a stop is not noticed.
SIGNALS_S = 0.5


def run_until_stopped(query: Any) -> None:
    """Wait for a streaming query, without end if it has none. What ends it with an error is raised.

    A task that is stopped (cleared, marked, timed out, its worker told to end) stops the query; the next try goes on where the
    checkpoint has it.
    """
    ended = threading.Event()

    def wait() -> None:
        # Here and not in the task's own thread: a stop must not come in the middle of a call to the JVM.
        try:
            query.awaitTermination()
        except Exception:  # noqa: S110 - asked for below, in the thread that may raise it
            pass
        finally:
            ended.set()

    try:
        threading.Thread(target=wait, name="streaming-query", daemon=True).start()
        # A signal that comes just before the wait begins does not interrupt it; it is handled between two waits.
        while not ended.wait(SIGNALS_S):
            pass
    except BaseException:
        stopping = threading.Thread(target=query.stop, name="streaming-stop", daemon=True)
        stopping.start()
        stopping.join(STOP_TIMEOUT_S)
        raise
    query.awaitTermination()
