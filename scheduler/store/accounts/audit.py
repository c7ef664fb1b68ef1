"""The audit log: the account and address of each requested change, and its result."""

from collections.abc import Mapping
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection


def begin(
    connection: Connection,
    event: str,
    *,
    account: str | None,
    address: str | None,
    dag_id: str | None = None,
    run_id: str | None = None,
    task_id: str | None = None,
    map_index: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> int:
    """Record a change before it is made, and return the number of the entry."""
    number: int = connection.exec_driver_sql(
        "insert into audit (account, address, event, dag_id, run_id, task_id, map_index, extra)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s) returning id",
        (account, address, event, dag_id, run_id, task_id, map_index, psycopg2.extras.Json(dict(extra or {}))),
    ).scalar_one()
    return number


def add(connection: Connection, event: str, *, status: int, **entry: Any) -> None:
    """Record a change with its status. `entry` has the arguments of `begin`."""
    end(connection, begin(connection, event, **entry), status)


def end(connection: Connection, number: int, status: int) -> None:
    """Record the HTTP status of the change."""
    connection.exec_driver_sql("update audit set status = %s where id = %s", (status, number))
