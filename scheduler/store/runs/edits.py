"""What people write by hand: notes, XComs, the state of tasks and assets. They also delete instances of removed tasks.

Values of states come in as JSON texts. One that has expired is as good as deleted. Tasks write theirs in store/worker/xcoms.
"""

from datetime import datetime
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from scheduler.store.db import sqlstates
from scheduler.store.moves.reset import note_results

#: An insert that finds its task instance deleted stores nothing. It locks it, so that a deletion finds the new row.
SET_OF_TASK = """
insert into task_state (task_instance_id, key, value, expires_at)
select id, %(key)s, %(value)s, coalesce(%(at)s, clock_timestamp() + make_interval(days => %(days)s))
  from task_instance where id = %(ti)s for key share
    on conflict (task_instance_id, key) do update
   set value = excluded.value, updated_at = clock_timestamp(), expires_at = excluded.expires_at
"""
ADD_TO_TASK = """
insert into task_state (task_instance_id, key, value) select id, %s, %s from task_instance where id = %s for key share
    on conflict (task_instance_id, key) do nothing
"""
ADD_XCOM = """
insert into xcom (task_instance_id, key, value) select id, %s, %s from task_instance where id = %s for key share
    on conflict do nothing
"""
NOTE_OF_TASK = """
insert into instance_note (task_instance_id, note) select id, %s from task_instance where id = %s for key share
    on conflict (task_instance_id) do update set note = excluded.note
"""
NOTE_OF_RUN = """
insert into run_note (note, dag_run_id) values (%s, %s) on conflict (dag_run_id) do update set note = excluded.note
"""
REPLACE_OF_TASK = """
update task_state set value = %s, updated_at = clock_timestamp()
 where task_instance_id = %s and key = %s and (expires_at is null or expires_at > clock_timestamp())
"""
DELETE_OF_TASK = """
delete from task_state s using task_instance t join dag_run r on r.id = t.dag_run_id
 where t.id = s.task_instance_id and r.dag_id = %(dag_id)s and r.run_id = %(run_id)s and t.task_id = %(task_id)s
   and t.map_index = coalesce(%(map_index)s, t.map_index) and s.key = coalesce(%(key)s, s.key)
   and not starts_with(s.key, 'hitl_')
"""
#: An empty DAG ID stands for the REST API as the writer.
SET_OF_ASSET = """
insert into asset_state (uri, key, value, dag_id, run_id, task_id, map_index) values (%s, %s, %s, '', '', '', -1)
    on conflict (uri, key) do update
   set value = excluded.value, updated_at = clock_timestamp(), dag_id = '', run_id = '', task_id = '', map_index = -1
"""
#: Tasks may delete at the same time, so the rows are locked in one order.
DELETE_OF_ASSET = """
with held as (select uri, key from asset_state where uri = %s and key = coalesce(%s, key) order by key for update)
delete from asset_state s using held where s.uri = held.uri and s.key = held.key
"""


def note_run(connection: Connection, dag_run_id: int, note: str | None) -> None:
    """Set the note of a run; an empty one deletes it."""
    if note:
        connection.exec_driver_sql(NOTE_OF_RUN, (note, dag_run_id))
    else:
        connection.exec_driver_sql("delete from run_note where dag_run_id = %s", (dag_run_id,))


def note_instance(connection: Connection, task_instance_id: int, note: str | None) -> None:
    """Set the note of a task instance; an empty one deletes it."""
    if note:
        connection.exec_driver_sql(NOTE_OF_TASK, (note, task_instance_id))
    else:
        connection.exec_driver_sql("delete from instance_note where task_instance_id = %s", (task_instance_id,))


def delete_removed(connection: Connection, ti_id: int) -> bool:
    """Delete a task instance whose task its DAG no longer has; False if it is another one."""
    gone = connection.exec_driver_sql("delete from task_instance where id = %s and state = 'removed'", (ti_id,))
    return gone.rowcount == 1


def put_xcom(connection: Connection, ti_id: int, name: str, value: Any, *, new: bool) -> None:
    """Add or replace an XCom. ConflictError for a new one that is there, NotFoundError for another that is not."""
    stored = psycopg2.extras.Json(value)
    try:
        if new:
            done = connection.exec_driver_sql(ADD_XCOM, (name, stored, ti_id))
        else:
            done = connection.exec_driver_sql(
                "update xcom set value = %s, created_at = clock_timestamp() where task_instance_id = %s and key = %s",
                (stored, ti_id, name),
            )
    except DataError as error:
        raise PacelineError(sqlstates.unstorable("The value", error)) from None
    if done.rowcount == 0:
        raise ConflictError(f"There is an XCom {name!r} already.") if new else NotFoundError(f"There is no XCom {name!r}.")
    note_results(connection, [ti_id])


def delete_xcom(connection: Connection, ti_id: int, name: str) -> None:
    """NotFoundError."""
    if connection.exec_driver_sql("delete from xcom where task_instance_id = %s and key = %s", (ti_id, name)).rowcount == 0:
        raise NotFoundError(f"There is no XCom {name!r}.")
    note_results(connection, [ti_id])


def set_of_task(connection: Connection, ti_id: int, key: str, value: str, *, at: datetime | None, days: int | None) -> None:
    """Store a value that expires at a moment or after so many days, or never. NotFoundError if the task instance is deleted."""
    _written(connection, SET_OF_TASK, {"ti": ti_id, "key": key, "value": value, "at": at, "days": days}, key)


def add_to_task(connection: Connection, ti_id: int, key: str, value: str) -> bool:
    """Store a value that never expires under a key that has none; False if it has one, or the task instance is deleted."""
    return connection.exec_driver_sql(ADD_TO_TASK, (key, value, ti_id)).rowcount > 0


def replace_of_task(connection: Connection, ti_id: int, key: str, value: str) -> None:
    """Store a value under a key that has one, which expires when that would have. NotFoundError."""
    _written(connection, REPLACE_OF_TASK, (value, ti_id, key), key)


def delete_of_task(
    connection: Connection, dag_id: str, run_id: str, task_id: str, map_index: int | None, *, key: str | None
) -> None:
    """Delete one value or, without `key`, all; without `map_index`, those of all instances of the task.

    Requests to people and their answers (read/requests.RESERVED) remain.
    """
    names = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index, "key": key}
    connection.exec_driver_sql(DELETE_OF_TASK, names)


def set_of_asset(connection: Connection, uri: str, key: str, value: str) -> None:
    """Store a value."""
    _written(connection, SET_OF_ASSET, (uri, key, value), key)


def delete_of_asset(connection: Connection, uri: str, key: str | None) -> None:
    """Delete one value or, without `key`, all."""
    connection.exec_driver_sql(DELETE_OF_ASSET, (uri, key))


def _written(connection: Connection, statement: str, parameters: object, key: str) -> None:
    try:
        done = connection.exec_driver_sql(statement, parameters)  # type: ignore[arg-type]
    except DataError as error:
        raise PacelineError(sqlstates.unstorable("The value", error)) from None
    if done.rowcount == 0:
        raise NotFoundError(f"There is no value {key!r}.")
