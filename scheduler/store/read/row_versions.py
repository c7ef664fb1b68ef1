"""The rows of each thing that the REST API changes by its address, and their versions."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from scheduler.store.read.listing import key

#: A table, a condition over the names in the path of a request, and the column that gives the order of locks.
Rows = tuple[str, str, str]
#: The version of each row: the transaction that wrote it.
Versions = tuple[str, ...]

_RUN = "dag_id = %(dag_id)s and run_id = %(dag_run_id)s"
_INSTANCES = f"dag_run_id = (select id from dag_run where {_RUN}) and task_id = %(task_id)s"
_OF_INSTANCES = f"task_instance_id in (select id from task_instance where {_INSTANCES})"
INSTANCES: Rows = ("task_instance", _INSTANCES, "id")
VARIABLE: tuple[Rows, ...] = (("variable", "key = %(variable_key)s", "key"),)
CONNECTION: tuple[Rows, ...] = (("connection", "conn_id = %(connection_id)s", "conn_id"),)
POOL: tuple[Rows, ...] = (("pool", "name = %(pool_name)s", "name"),)
DAG: tuple[Rows, ...] = (("dag_schedule", "dag_id = %(dag_id)s", "dag_id"),)
RUN: tuple[Rows, ...] = (
    ("dag_run", _RUN, "id"),
    ("run_note", f"dag_run_id = (select id from dag_run where {_RUN})", "dag_run_id"),
)
INSTANCE: tuple[Rows, ...] = (INSTANCES, ("instance_note", _OF_INSTANCES, "task_instance_id"))
TASK_STATE: tuple[Rows, ...] = (INSTANCES, ("task_state", f"{_OF_INSTANCES} and key = %(key)s", "task_instance_id"))
QUESTION: tuple[Rows, ...] = (INSTANCES, ("task_state", f"{_OF_INSTANCES} and starts_with(key, 'hitl_')", "task_instance_id, key"))
XCOM: tuple[Rows, ...] = (INSTANCES, ("xcom", f"{_OF_INSTANCES} and key = %(xcom_key)s", "task_instance_id"))
ASSET_STATE: tuple[Rows, ...] = (("asset_state", f"{key('uri')}::text = %(asset_id)s and key = %(key)s", "uri"),)


def versions(connection: Connection, thing: tuple[Rows, ...], names: Mapping[str, Any]) -> Versions:
    """The versions of the rows of a thing; they differ after each change, and for another thing of the same name."""
    found: list[str] = []
    for table, condition, order in thing:
        selected = connection.exec_driver_sql(f"select xmin::text from {table} where {condition} order by {order}", dict(names))
        found += [table, *selected.scalars()]
    return tuple(found)


def lock(connection: Connection, thing: tuple[Rows, ...], names: Mapping[str, Any]) -> Versions:
    """Lock the rows of a thing until the end of the transaction, and return their versions.

    The lock of a run or a task instance also keeps others from adding rows that refer to it, such as a note. The versions
    are read by another statement: one that waits for a lock sees the other tables as they were before the wait.
    """
    for table, condition, order in thing:
        connection.exec_driver_sql(f"select 1 from {table} where {condition} order by {order} for update", dict(names))
    return versions(connection, thing, names)
