"""The state of tasks and assets as a worker reads and writes it. The key None stands for all keys."""

from typing import Any

from scheduler.store.db import fencing
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.worker_connection import WorkerConnection

GET_OF_TASK = """
select value from task_state where task_instance_id = %s and key = %s and (expires_at is null or expires_at > clock_timestamp())
"""
GET_OF_ASSET = "select value from asset_state where uri = %s and key = %s"
SET_OF_TASK = fencing.guarded(
    "insert into task_state (task_instance_id, key, value, expires_at)"
    " select id, %s, %s, clock_timestamp() + make_interval(secs => %s) from current"
    " on conflict (task_instance_id, key) do update"
    " set value = excluded.value, updated_at = clock_timestamp(), expires_at = excluded.expires_at returning key"
)
SET_OF_ASSET = fencing.guarded(
    "insert into asset_state (uri, key, value, dag_id, run_id, task_id, map_index)"
    " select %s, %s, %s, %s, %s, %s, %s from current"
    " on conflict (uri, key) do update"
    " set value = excluded.value, updated_at = clock_timestamp(), dag_id = excluded.dag_id, run_id = excluded.run_id,"
    " task_id = excluded.task_id, map_index = excluded.map_index returning key"
)
DELETE_OF_TASK = fencing.guarded(
    "delete from task_state s using current where s.task_instance_id = current.id and s.key = coalesce(%s, s.key) returning s.key"
)
#: Other task instances may delete at the same time, so the rows are locked in one order.
DELETE_OF_ASSET = fencing.guarded(
    "delete from asset_state s using current,"
    " (select a.uri, a.key from asset_state a where a.uri = %s and a.key = coalesce(%s, a.key) order by a.key for update) a"
    " where s.uri = a.uri and s.key = a.key returning s.key"
)


def get(connection: WorkerConnection, claim: Claim, uri: str | None, key: str, *, default: Any) -> Any:
    """The value of the asset, or with None of the task instance; `default` if there is none or it has expired."""
    if uri is None:
        return connection.value(GET_OF_TASK, (claim.id, key), default)
    return connection.value(GET_OF_ASSET, (uri, key), default)


def put(
    connection: WorkerConnection, claim: Claim, uri: str | None, key: str, json_text: str, *, expires_in_s: float | None
) -> None:
    """Store one value; StaleTryError. Those of assets do not expire."""
    if uri is None:
        connection.write(claim.writer, SET_OF_TASK, (key, json_text, expires_in_s))
        return
    by = (claim.dag_id, claim.run_id, claim.task_id, claim.map_index)
    connection.write(claim.writer, SET_OF_ASSET, (uri, key, json_text, *by))


def delete(connection: WorkerConnection, claim: Claim, uri: str | None, key: str | None) -> None:
    """Delete one value or all; StaleTryError."""
    if uri is None:
        connection.write(claim.writer, DELETE_OF_TASK, (key,))
    else:
        connection.write(claim.writer, DELETE_OF_ASSET, (uri, key))
