"""The progress of a running task instance."""

import contextlib
from collections.abc import Mapping
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extras import Json

from scheduler.settings import Settings
from scheduler.store.db.database import connect
from scheduler.store.worker.claims import Claim

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
            self._connection = connect(self._settings, "paceline progress", "-c synchronous_commit=off")
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
