"""Variables: their values are stored encrypted."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError, PacelineError
from scheduler.store.db import fencing, rows
from scheduler.store.secrets.cipher import Cipher

KEY_MAX_LENGTH = 250
#: Used by the hot path too.
READ = "select value from variable where key = %s"
UPSERT = """
on conflict (key) do update set value = excluded.value, updated_at = clock_timestamp(),
                                description = coalesce(nullif(excluded.description, ''), variable.description)
returning key
"""
INSERT = "insert into variable (key, value, description) values (%s, %s, coalesce(%s, ''))"
WRITE = f"{INSERT} {UPSERT}"
WRITE_NEW = f"{INSERT} on conflict do nothing returning key"
DELETE = "delete from variable where key = %s returning key"
#: The statements of tasks: a stale try must not overwrite a value of the current one.
WRITE_OF_TASK = fencing.guarded(
    f"insert into variable (key, value, description) select %s, %s, coalesce(%s, '') from current {UPSERT}"
)
DELETE_OF_TASK = fencing.guarded("delete from variable using current where key = %s returning key")


def variables(connection: Connection) -> list[dict[str, Any]]:
    """Every variable without its value."""
    found = connection.exec_driver_sql("select key, description, updated_at from variable order by key")
    return rows.dicts(found)


def variable(connection: Connection, key: str, cipher: Cipher) -> dict[str, Any]:
    """One variable with its value; NotFoundError."""
    found = connection.exec_driver_sql("select key, value, description, updated_at from variable where key = %s", (key,))
    row = found.mappings().first()
    if row is None:
        raise _missing(key)
    return {**row, "value": cipher.decrypt(row["value"], f"Variable {key!r}")}


def set_variables(
    connection: Connection, values: Iterable[tuple[str, str, str | None]], cipher: Cipher, *, replace: bool = True
) -> list[str]:
    """Create or change all variables (key, value, description) or none, and return the keys written.

    Without `replace`, existing variables stay.
    """
    written = []
    for key, value, description in sorted(values):
        check_key(key)
        row = connection.exec_driver_sql(WRITE if replace else WRITE_NEW, (key, cipher.encrypt(value), description)).first()
        if row is not None:
            written.append(key)
    return written


def tokens(connection: Connection) -> list[tuple[str, str]]:
    """The key and the encrypted value of every variable."""
    return [(row.key, row.value) for row in connection.exec_driver_sql("select key, value from variable order by key")]


def delete_variable(connection: Connection, key: str) -> None:
    """Delete a variable; NotFoundError if there is none."""
    if connection.exec_driver_sql(DELETE, (key,)).first() is None:
        raise _missing(key)


def rotate(connection: Connection, cipher: Cipher) -> int:
    """Encrypt every variable again with the first key, and return their number."""
    stored = connection.exec_driver_sql("select key, value from variable order by key for update").all()
    for key, value in stored:
        connection.exec_driver_sql(
            "update variable set value = %s where key = %s", (cipher.rotate(value, f"Variable {key!r}"), key)
        )
    return len(stored)


def check_key(key: str) -> None:
    """PacelineError if a variable cannot have this key."""
    if not key.strip() or len(key) > KEY_MAX_LENGTH or "\0" in key:
        raise PacelineError(f"The key of a variable must have 1 to {KEY_MAX_LENGTH} characters and no NUL.")


def _missing(key: str) -> NotFoundError:
    return NotFoundError(f"There is no variable {key!r}: `paceline variables list` lists all.")
