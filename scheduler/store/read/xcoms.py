"""XComs: lists of them, and changes by the REST API."""

from dataclasses import replace
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from scheduler.store.db import rows, sqlstates
from scheduler.store.moves import reset
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


def xcom_values(connection: Connection, filters: Filters) -> list[Row]:
    """XComs with their values, in the order of their task instances."""
    return rows.dicts(
        connection.exec_driver_sql(
            f"select {XCOMS_WITH_VALUES.columns} from {XCOMS.tables} {filters.sql} order by t.id, x.key", filters.parameters
        )
    )


def put_xcom(connection: Connection, ti_id: int, name: str, value: Any, *, new: bool) -> None:
    """Add or replace an XCom. ConflictError for a new one that is there, NotFoundError for another that is not."""
    stored = psycopg2.extras.Json(value)
    try:
        if new:
            done = connection.exec_driver_sql(
                "insert into xcom (task_instance_id, key, value) values (%s, %s, %s) on conflict do nothing", (ti_id, name, stored)
            )
        else:
            done = connection.exec_driver_sql(
                "update xcom set value = %s, created_at = clock_timestamp() where task_instance_id = %s and key = %s",
                (stored, ti_id, name),
            )
    except DataError as error:
        raise PacelineError(sqlstates.unstorable("The value", error)) from None
    if done.rowcount == 0:
        raise ConflictError(f"There is an XCom {name!r} already.") if new else NotFoundError(f"There is no XCom {name!r}.")
    reset.note_results(connection, [ti_id])


def delete_xcom(connection: Connection, ti_id: int, name: str) -> None:
    """NotFoundError."""
    if connection.exec_driver_sql("delete from xcom where task_instance_id = %s and key = %s", (ti_id, name)).rowcount == 0:
        raise NotFoundError(f"There is no XCom {name!r}.")
    reset.note_results(connection, [ti_id])
