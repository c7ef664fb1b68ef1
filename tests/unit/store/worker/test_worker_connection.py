"""The connection of a pool process, without a server."""

import threading

from scheduler.settings import Settings
from scheduler.store.worker import worker_connection
from scheduler.store.worker.worker_connection import WorkerConnection


def test_two_threads_may_fork_at_the_same_time() -> None:
    """The second one holds the connection as soon as the first has left it, and the first must not release it again."""
    mine = WorkerConnection(Settings(), "w")
    connections = list(worker_connection._ALL)
    holds, ends = threading.Event(), threading.Event()

    def fork() -> None:
        worker_connection._before_fork()
        holds.set()
        ends.wait(10)
        worker_connection._after_fork(WorkerConnection.release)

    def leave(left: WorkerConnection) -> None:
        left.release()
        connections.remove(left)
        assert connections or holds.wait(10)

    worker_connection._before_fork()
    other = threading.Thread(target=fork)
    other.start()
    try:
        worker_connection._after_fork(leave)
    finally:
        ends.set()
        other.join()

    assert mine._lock.acquire(timeout=10)
    mine.release()
