"""Structured streaming in a task: the query runs until the task is stopped, and stops before the task."""

import threading
from typing import Any

#: Seconds that a query may take to stop. Then its JVM is killed with the task, and the next try uses its checkpoint.
STOP_TIMEOUT_S = 6.0
#: The longest time, in seconds, until a stop is noticed.
SIGNALS_S = 0.5


def run_until_stopped(query: Any) -> None:
    """Wait until a streaming query ends; its error is raised.

    If the task is stopped (cleared, marked, timed out, or its worker stops), the query is stopped first. The next try
    continues from its checkpoint.
    """
    ended = threading.Event()

    def wait() -> None:
        # In a separate thread, so that a stop of the task does not interrupt a call to the JVM.
        try:
            query.awaitTermination()
        except Exception:  # noqa: S110 - the call at the end of this function raises it in the thread of the task
            pass
        finally:
            ended.set()

    try:
        threading.Thread(target=wait, name="streaming-query", daemon=True).start()
        # A signal just before a wait does not interrupt it; it is handled between two waits.
        while not ended.wait(SIGNALS_S):
            pass
    except BaseException:
        stopping = threading.Thread(target=query.stop, name="streaming-stop", daemon=True)
        stopping.start()
        stopping.join(STOP_TIMEOUT_S)
        raise
    query.awaitTermination()
