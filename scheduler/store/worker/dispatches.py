"""Statements of a pool process on its own dispatch that not every task needs: labels, stops and undone claims."""

from scheduler.store.db import fencing
from scheduler.store.worker import shutdown
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.worker_connection import WorkerConnection

LABEL = fencing.guarded("update task_instance t set map_label = %s from current where t.id = current.id returning t.id")


def label(connection: WorkerConnection, claim: Claim, text: str) -> None:
    """Store the rendered map_index_template of a running task instance; StaleTryError."""
    connection.write(claim.writer, LABEL, (text,))


def end_as_requested(connection: WorkerConnection, claim: Claim) -> bool:
    """Move `shutdown` to the requested state, once the user code has ended. False if this dispatch is not being stopped."""
    return bool(
        connection.read(shutdown.END_AS_REQUESTED.format(which="id = %s and dispatch_id = %s"), (claim.id, claim.dispatch_id))
    )


def claim_again(connection: WorkerConnection, claim: Claim) -> bool:
    """queued -> running again for this dispatch, if a crash of PostgreSQL undid the claim; else False."""
    claimed = connection.read(
        "update task_instance set state = 'running', worker = %s, reason = null, started_at = %s"
        " where id = %s and dispatch_id = %s and state = 'queued' returning id",
        (connection.worker_id, claim.started_at, claim.id, claim.dispatch_id),
    )
    return bool(claimed)
