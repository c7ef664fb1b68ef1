"""The state of tasks and assets, as the REST API lists and changes it. Tasks have theirs from store/worker/xcoms.

Values come in as JSON texts. One that has expired is as good as deleted.
"""

from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.exceptions import NotFoundError, PacelineError
from scheduler.store.db import sqlstates
from scheduler.store.read.listing import Filters, Listing, Row

#: The values of task instances.
TASKS = Listing(
    columns="s.key, s.value, s.updated_at, s.expires_at",
    tables="task_state s join task_instance t on t.id = s.task_instance_id join dag_run r on r.id = t.dag_run_id",
    orders={"key": "s.key"},
    filtered={"dag_id": "r.dag_id", "run_id": "r.run_id", "task_id": "t.task_id", "map_index": "t.map_index"},
    default_order=("key",),
    key="s.key",
)
#: The values of assets.
ASSETS = Listing(
    columns="s.key, s.value, s.updated_at, s.dag_id, s.run_id, s.task_id, s.map_index",
    tables="asset_state s",
    orders={"key": "s.key"},
    filtered={"uri": "s.uri"},
    default_order=("key",),
    key="s.key",
)
#: An insert that finds its task instance deleted stores nothing.
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


def task_filters(dag_id: str, run_id: str, task_id: str, map_index: int) -> Filters:
    """The values of a task instance that have not expired."""
    filters = TASKS.filters().where("(s.expires_at is null or s.expires_at > clock_timestamp())")
    filters.equals("dag_id", dag_id).equals("run_id", run_id)
    return filters.equals("task_id", task_id).equals("map_index", map_index)


def asset_filters(uri: str) -> Filters:
    """The values of an asset."""
    return ASSETS.filters().equals("uri", uri)


def one_of_task(connection: Connection, filters: Filters, key: str) -> Row:
    """NotFoundError."""
    return TASKS.one(connection, filters.equals("key", key), f"There is no value {key!r}.")


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

    Requests to people and their answers (requests.RESERVED) remain.
    """
    names = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index, "key": key}
    connection.exec_driver_sql(DELETE_OF_TASK, names)


def one_of_asset(connection: Connection, filters: Filters, key: str) -> Row:
    """NotFoundError."""
    return ASSETS.one(connection, filters.equals("key", key), f"There is no value {key!r}.")


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
