"""What tasks and assets store, as the REST API lists it: XComs, and the values of the state store.

An expired value is as good as deleted.
"""

from dataclasses import replace

from sqlalchemy import Connection

from scheduler.store.db import rows
from scheduler.store.read.listing import Filters, Listing, Row

XCOMS = Listing(
    columns="x.key, x.created_at, t.id as ti_id, t.task_id, t.map_index, r.dag_id, r.run_id, r.logical_date, r.run_after",
    tables="xcom x join task_instance t on t.id = x.task_instance_id join dag_run r on r.id = t.dag_run_id",
    orders={"key": "x.key", "dag_id": "r.dag_id", "run_id": "r.run_id", "task_id": "t.task_id", "map_index": "t.map_index",
            "timestamp": "x.created_at", "run_after": "r.run_after", "logical_date": "r.logical_date"},
    filtered={"run_key": "t.dag_run_id"},
    default_order=("dag_id", "task_id", "run_id", "map_index", "key"),
    key="(t.id, x.key)",
)  # fmt: skip
XCOMS_WITH_VALUES = replace(XCOMS, columns=f"x.value, {XCOMS.columns}")
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


def xcom_values(connection: Connection, filters: Filters) -> list[Row]:
    """XComs with their values, in the order of their task instances."""
    return rows.dicts(
        connection.exec_driver_sql(
            f"select {XCOMS_WITH_VALUES.columns} from {XCOMS.tables} {filters.sql} order by t.id, x.key", filters.parameters
        )
    )


def task_filters(dag_id: str, run_id: str, task_id: str, map_index: int) -> Filters:
    """The values of a task instance that have not expired."""
    filters = TASKS.filters().where("(s.expires_at is null or s.expires_at > clock_timestamp())")
    filters.equals("dag_id", dag_id).equals("run_id", run_id)
    return filters.equals("task_id", task_id).equals("map_index", map_index)


def asset_filters(uri: str) -> Filters:
    """The values of an asset."""
    return ASSETS.filters().equals("uri", uri)
