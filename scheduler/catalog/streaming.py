"""What a streaming query of Spark writes is published at each checkpoint, while its task runs.

The checkpoint counts an epoch as written when its commit has returned. If the try is killed after that, the next one does not write
the epoch again, so a commit must not wait for the success of the task. If it is killed before that, the next try repeats the epoch,
and must not write it twice:

- Iceberg's sink notes the query and the epoch in its snapshot, and skips an epoch that the table has. Its commits are published
  with what the try has done to the same table before.
- A function for `foreachBatch` may use any statements on any tables. `paceline.tables.published` begins the batch, unless it has
  been published, lets the function write, and then publishes all that the try has written, as this batch. A batch that has begun
  and is not published ends the batches of its try, in whichever process its next one begins: a driver that its cluster starts
  again has the token of the first one.
"""

from collections.abc import Sequence
from typing import Any

from pyiceberg.table import update as updates
from sqlalchemy import Connection

from scheduler.catalog.errors import CommitFailedError
from scheduler.process import fault_points
from scheduler.store.db import fencing
from scheduler.store.tables import publish, tries
from scheduler.store.tables.pointers import Change, Pinned

#: What Iceberg's sink notes in a snapshot.
MARKS = frozenset({"spark.sql.streaming.queryId", "spark.sql.streaming.epochId"})


def is_marked(changes: Sequence[Any]) -> bool:
    """Whether updates add an epoch of a streaming query."""
    snapshots = (update.snapshot for update in changes if isinstance(update, updates.AddSnapshotUpdate))
    return any(one.summary is not None and one.summary.additional_properties.keys() >= MARKS for one in snapshots)


def publish_epoch(connection: Connection, catalog: str, attempt: Pinned, changes: Sequence[Change]) -> list[publish.Row]:
    """Publish what a try has written to the tables of these changes, which `tries.write` has stored. Then it reads what is current.

    Returns the tables that others have changed, without publishing anything.
    """
    _, moved = publish.publish_names(connection, catalog, attempt, [(one.namespace, one.name) for one in changes])
    if moved:
        connection.rollback()
    else:
        fault_points.point("tables.published")
    return moved


def begin_batch(connection: Connection, attempt: Pinned, query: str, number: int) -> bool:
    """Begin a batch of a query. False if it has been published. A reproduction has batches of its own. StaleTryError.

    CommitFailedError if another batch of the try has begun and was not published.
    """
    fencing.lock(connection, fencing.Writer(attempt.task_instance_id, attempt.dispatch_id, attempt.try_number))
    if publish.request_is_done(connection, _digest(attempt, query, number)):
        return False
    if not tries.begin_batch(connection, attempt):
        raise CommitFailedError("A batch of this try has failed, so the next try repeats it: let the task fail.")
    return True


def publish_batch(connection: Connection, catalog: str, attempt: Pinned, query: str, number: int) -> list[publish.Row]:
    """Publish all that a try has written, as a batch of a query. Nothing if the batch has been published. StaleTryError.

    Returns the tables that others have changed, without publishing anything.
    """
    fencing.lock(connection, fencing.Writer(attempt.task_instance_id, attempt.dispatch_id, attempt.try_number))
    if not publish.note_request(connection, _digest(attempt, query, number)):
        return []
    _, moved = publish.publish_names(connection, catalog, attempt, None)
    if moved:
        connection.rollback()
    else:
        tries.end_batch(connection, attempt)
        fault_points.point("tables.published")
    return moved


def _digest(attempt: Pinned, query: str, number: int) -> bytes:
    return publish.request_digest(attempt.scratch or "", query, str(number))
