"""Statements of a pool process on its own dispatch that not every task needs: labels, stops and undone claims."""

import contextlib
from collections.abc import Mapping
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extras import Json

from scheduler.settings import Settings
from scheduler.store.db import fencing
from scheduler.store.db.database import connect
from scheduler.store.moves.claim import CLAIM_AGAIN
from scheduler.store.moves.stop import END_AS_REQUESTED
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import WorkerConnection

LABEL = fencing.guarded("update task_instance t set map_label = %s from current where t.id = current.id returning t.id")


def label(connection: WorkerConnection, claim: Claim, text: str) -> None:
    """Store the rendered map_index_template of a running task instance; StaleTryError."""
    connection.write(claim.writer, LABEL, (text,))


def end_as_requested(connection: WorkerConnection, claim: Claim) -> bool:
    """Move `shutdown` to the requested state, once the user code has ended. False if this dispatch is not being stopped."""
    return bool(connection.read(END_AS_REQUESTED.format(which="id = %s and dispatch_id = %s"), (claim.id, claim.dispatch_id)))


def claim_again(connection: WorkerConnection, claim: Claim) -> bool:
    """queued -> running again for this dispatch, if a crash of PostgreSQL undid the claim; else False."""
    claimed = connection.read(CLAIM_AGAIN, (connection.worker_id, claim.started_at, claim.id, claim.dispatch_id))
    return bool(claimed)


#: Writes only for the current dispatch, so a try that was cleared stores nothing.
WRITE = """
insert into task_progress (task_instance_id, try_number, progress)
select id, try_number, %s from task_instance where id = %s and dispatch_id = %s and state = 'running' for share
on conflict (task_instance_id) do update
   set try_number = excluded.try_number, progress = excluded.progress, seen_at = excluded.seen_at
"""


class ProgressWriter:
    """Stores the progress of one dispatch, on a connection of its own that the first write opens.

    It runs in a thread beside the task, so it cannot share the connection of the hot path.
    """

    def __init__(self, settings: Settings, claim: Claim) -> None:
        self._settings = settings
        self._claim = claim
        self._connection: Connection | None = None

    def write(self, progress: Mapping[str, Any]) -> None:
        """Replace the stored progress. psycopg2.Error if the database does not answer; then the next call connects again."""
        if self._connection is None:
            self._connection = connect(self._settings, "paceline progress", {"synchronous_commit": "off"})
            self._connection.autocommit = True
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(WRITE, (Json(dict(progress)), self._claim.id, self._claim.dispatch_id))
        except psycopg2.Error:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg2.Error):
                connection.close()
