"""Batches of a streaming query that write tables: each is published when its function returns, exactly once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from paceline.authoring import running
from paceline.exceptions import PacelineError
from paceline.tables import writes

#: The property of Spark's threads with the ID of their streaming query, which stays the same with its checkpoint.
QUERY = "sql.streaming.queryId"
#: Seconds for which a batch waits for the catalog.
TIMEOUT_S = 60.0
#: A try may have several queries, each with a thread. A publication has all that the try has written, so batches follow each other.
_one_at_a_time = threading.Lock()
#: The tokens of tries whose last batch has begun and is not published: what it wrote would be published with the next one.
_unpublished: set[str] = set()


def published(write: Callable[[Any, int], object]) -> Callable[[Any, int], None]:
    """Let `foreachBatch(published(write))` publish what `write(frame, number)` has written to tables when it returns, all at once.

    A batch that is repeated after a lost worker is skipped if it was published. If not, nobody can see what the lost worker wrote.
    What the task has written before the batch is published with it. If `write` fails, or another task has changed one of the tables
    meanwhile, the query fails, and the next try of the task repeats the batch; this try publishes no further one.

    Call it in the task. The query must run in the task's JVM, not on a Connect server.
    """
    properties = writes.catalog_of(running.get_current_context()).properties

    @functools.wraps(write)
    def batch(frame: Any, number: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
        if not query:
            raise PacelineError("published() is for the function of a streaming query: use it as foreachBatch(published(write)).")
        with _one_at_a_time:
            if properties["token"] in _unpublished:
                raise PacelineError("A batch of this try has failed, so the next try repeats it: let the task fail.")
            if not _asked("GET", properties, query, number):
                _unpublished.add(properties["token"])
                write(frame, number)
                _asked("POST", properties, query, number)
                _unpublished.discard(properties["token"])

    return batch


def _asked(method: str, properties: dict[str, str], query: str, number: int) -> bool:
    """Ask whether a batch is published, or publish it. PacelineError with the reason of the catalog."""
    import requests

    answer = requests.request(
        method, f"{properties['uri'].rstrip('/')}/v1/batches/{query}/{number}",
        headers={"Authorization": f"Bearer {properties['token']}"}, timeout=TIMEOUT_S,
    )  # fmt: skip
    if not answer.ok:
        try:
            reason = answer.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            reason = answer.text
        raise PacelineError(f"Batch {number} of the query is not published: {reason}")
    return bool(answer.json()["is_published"])
