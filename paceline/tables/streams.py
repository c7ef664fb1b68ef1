"""Batches of a streaming query that write tables: each is published when its function returns, exactly once.

The function of a query on a Connect server runs in a process of the server, which need not have Paceline: what it calls here is
sent to it as code, so it imports the standard library alone.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import urllib.error
import urllib.request
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


def published(write: Callable[[Any, int], object]) -> Callable[[Any, int], None]:
    """Let `foreachBatch(published(write))` publish what `write(frame, number)` has written to tables when it returns, all at once.

    A batch that is repeated after a lost worker is skipped if it was published. If not, nobody can see what the lost worker wrote.
    What the task has written before the batch is published with it. If `write` fails, or another task has changed one of the tables
    meanwhile, the query fails, and the next try of the task repeats the batch; this try publishes no further one.

    Call it in the task, or in the application of SparkSubmitOperator. On a Connect server, the session must have no other query.
    """
    catalog = _catalog()
    if _is_on_server():
        _send_as_code()
        return _batch_on_server(write, catalog)

    @functools.wraps(write)
    def batch(frame: Any, number: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY)
        if not query:
            raise PacelineError("published() is for the function of a streaming query: use it as foreachBatch(published(write)).")
        with _one_at_a_time:
            try:
                _written(write, frame, number, query, catalog)
            except _NotPublishedError as error:
                raise PacelineError(str(error)) from None

    return batch


def follow() -> None:
    """Let the try of this application read what is current from now on, if it has the catalog of tables."""
    if running.TABLES_TOKEN in os.environ:
        try:
            _asked("POST", _catalog(), "follow")
        except _NotPublishedError as error:
            raise PacelineError(f"The query cannot follow the tables: {error}") from None


class _NotPublishedError(Exception):
    """The reason of the catalog."""


def _batch_on_server(write: Callable[[Any, int], object], catalog: tuple[str, str]) -> Callable[[Any, int], None]:
    """The function of a query on a Connect server, where a session, and not a thread, knows its queries."""
    known: list[str] = []

    def batch(frame: Any, number: int) -> None:
        queries = [str(query.id) for query in frame.sparkSession.streams.active]
        if len(queries) != 1 or (known and known != queries):
            raise RuntimeError(
                "On a Connect server, published() needs a session with one streaming query: give each query a task of its own."
            )
        known[:] = queries
        _written(write, frame, number, queries[0], catalog)

    return batch


def _written(write: Callable[[Any, int], object], frame: Any, number: int, query: str, catalog: tuple[str, str]) -> None:
    """Let a batch write and be published, unless it was published before."""
    path = f"batches/{query}/{number}"
    try:
        if not _asked("PUT", catalog, path)["is_published"]:
            write(frame, number)
            _asked("POST", catalog, path)
    except _NotPublishedError as error:
        raise _NotPublishedError(f"Batch {number} of the query is not published: {error}") from None


def _asked(method: str, catalog: tuple[str, str], path: str) -> Any:
    """The answer of the catalog with this address, for this token, to a request without a body."""
    uri, token = catalog
    url = f"{uri.rstrip('/')}/v1/{path}"
    request = urllib.request.Request(url, b"", {"Authorization": f"Bearer {token}"}, method=method)  # noqa: S310 - a setting
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")
        try:
            raise _NotPublishedError(json.loads(text)["error"]["message"]) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _NotPublishedError(text or str(error)) from None
    except OSError as error:
        raise _NotPublishedError(f"the catalog at {uri} does not answer ({error})") from None


def _catalog() -> tuple[str, str]:
    """The address of the catalog, and the token of the try. PacelineError without one."""
    if not running.is_running() and running.TABLES_TOKEN in os.environ:
        return os.environ[running.TABLES_URI], os.environ[running.TABLES_TOKEN]
    catalog = writes.catalog_of(running.get_current_context())
    uri, token = catalog.properties["uri"], catalog.properties["token"]
    if not _is_on_server():
        return uri, token
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.getActiveSession()
    there = session and session.conf.get(f"spark.sql.catalog.{catalog.name}.uri", None)
    if not there:
        raise PacelineError(
            "The Connect server does not reach the catalog of tables: set tables.url to the address of a web process."
        )
    return str(there), token


def _is_on_server() -> bool:
    """Whether the session is on a Connect server."""
    try:
        from pyspark.sql.utils import is_remote
    except ImportError:  # before Spark 3.4, and where a frame stands for one of Spark
        return False
    return bool(is_remote())


def _send_as_code() -> None:
    """Let PySpark send the functions of this file as code."""
    from pyspark.cloudpickle import cloudpickle

    cloudpickle._PICKLE_BY_VALUE_MODULES.add(__name__)
