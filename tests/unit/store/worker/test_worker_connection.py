"""The connection of a pool process, without a server."""

import threading

from scheduler.settings import Settings
from scheduler.store.worker import hot_path
from scheduler.store.worker.hot_path import WorkerConnection


def test_two_threads_may_fork_at_the_same_time() -> None:
    """The second one holds the connection as soon as the first has left it, and the first must not release it again."""
    mine = WorkerConnection(Settings(), "w")
    connections = list(hot_path._ALL)
    holds, ends = threading.Event(), threading.Event()

    def fork() -> None:
        hot_path._before_fork()
        holds.set()
        ends.wait(10)
        hot_path._after_fork(WorkerConnection.release)

    def leave(left: WorkerConnection) -> None:
        left.release()
        connections.remove(left)
        assert connections or holds.wait(10)

    hot_path._before_fork()
    other = threading.Thread(target=fork)
    other.start()
    try:
        hot_path._after_fork(leave)
    finally:
        ends.set()
        other.join()

    assert mine._lock.acquire(timeout=10)
    mine.release()
