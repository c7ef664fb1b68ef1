"""A task with a streaming query: every end of the task stops the query, and an error of the query is the task's."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from paceline.operators import spark
from paceline.operators.spark import run_until_stopped


class Stopped(BaseException):
    """As a worker stops a task."""


class Query:
    """A query that ends when it is stopped, or with an error."""

    def __init__(self, error: Exception | None = None, *, deaf: bool = False) -> None:
        self.ended, self.awaited = threading.Event(), threading.Event()
        self.stops = 0
        self._error = error
        self._deaf = deaf
        if error is not None:
            self.ended.set()

    def awaitTermination(self) -> None:
        self.awaited.set()
        self.ended.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self.stops += 1
        if self._deaf:
            self.ended.wait()
        self.ended.set()


def test_a_query_that_ends_with_an_error_ends_the_task_with_it() -> None:
    with pytest.raises(ValueError, match="a bad row"):
        run_until_stopped(Query(ValueError("a bad row")))


@pytest.fixture
def stopped_by_signal() -> Iterator[None]:
    """SIGUSR1 stops the task in its thread, as SIGTERM does in a worker."""

    def stop(_signum: int, _frame: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("stopped_by_signal")
@pytest.mark.parametrize("deaf", [False, True])
def test_a_task_that_is_stopped_stops_its_query_and_waits_for_it_a_while(deaf: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(deaf=deaf)
    monkeypatch.setattr(spark, "STOP_TIMEOUT_S", 0.1 if deaf else 10.0)

    def stop_it() -> None:
        query.awaited.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=stop_it).start()
    with pytest.raises(Stopped):
        run_until_stopped(query)

    assert query.stops == 1
    assert query.ended.is_set() is not deaf
    query.ended.set()
