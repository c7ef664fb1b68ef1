"""Connections to other systems: their passwords and extras are stored encrypted."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection as Session

from paceline.authoring.connection import Connection
from paceline.exceptions import ConflictError, NotFoundError
from scheduler.store.db import rows
from scheduler.store.secrets.cipher import Cipher

COLUMNS = ("conn_id", "conn_type", "description", "host", "login", "password", "schema", "port", "extra")
#: Used by the hot path too.
READ = f"select {', '.join(COLUMNS)} from connection where conn_id = %s"


def from_values(conn_id: str, values: Mapping[str, Any]) -> Connection:
    """A new connection of these fields. PacelineError if one is wrong."""
    return Connection.from_json(conn_id, dict(values))


def from_row(row: Mapping[str, Any], cipher: Cipher) -> Connection:
    """The connection in a row of READ, decrypted."""
    values = dict(row)
    for name in ("password", "extra"):
        if values[name] is not None:
            values[name] = cipher.decrypt(values[name], f"The {name} of connection {values['conn_id']!r}")
    return Connection(**values)


def connections(session: Session) -> list[dict[str, Any]]:
    """Every connection without its secrets."""
    found = session.exec_driver_sql(
        "select conn_id, conn_type, description, host, schema, login, port, password is not null as has_password,"
        " extra is not null as has_extra, updated_at from connection order by conn_id"
    )
    return rows.dicts(found)


def connection(session: Session, conn_id: str, cipher: Cipher) -> Connection:
    """One connection, decrypted; NotFoundError."""
    stored = rows.first_dict(session.exec_driver_sql(READ, (conn_id,)))
    if stored is None:
        raise _missing(conn_id)
    return from_row(stored, cipher)


def add(session: Session, made: list[Connection], cipher: Cipher, *, existing: str = "fail") -> list[str]:
    """Store all connections or none, and return the IDs written. `existing`: fail (ConflictError), skip or overwrite."""
    written = []
    for one in sorted(made, key=lambda one: one.conn_id):
        replaces = f"(conn_id) do update set {_ALL_EXCLUDED}, updated_at = clock_timestamp()"
        conflict = replaces if existing == "overwrite" else "do nothing"
        row = session.exec_driver_sql(
            f"insert into connection ({', '.join(COLUMNS)}) values (%s, %s, coalesce(%s, ''), %s, %s, %s, %s, %s, %s)"
            f" on conflict {conflict} returning conn_id",
            (
                one.conn_id,
                one.conn_type,
                one.description,
                one.host,
                one.login,
                cipher.encrypt(one.password) if one.password else None,
                one.schema,
                one.port,
                cipher.encrypt(one.extra) if one.extra_dejson and one.extra else None,
            ),
        ).first()
        if row is not None:
            written.append(one.conn_id)
        elif existing == "fail":
            raise ConflictError(f"Connection {one.conn_id!r} already exists: `paceline connections set` replaces it.")
    return written


def tokens(session: Session) -> list[tuple[str, str]]:
    """The encrypted fields of every connection, each with its ID."""
    found = session.exec_driver_sql(
        "select c.conn_id, t.token from connection c cross join unnest(array[c.password, c.extra]) t (token)"
        " where t.token is not null order by c.conn_id"
    )
    return [(row.conn_id, row.token) for row in found]


def delete(session: Session, conn_id: str) -> None:
    """Delete a connection; NotFoundError if there is none."""
    if session.exec_driver_sql("delete from connection where conn_id = %s returning conn_id", (conn_id,)).first() is None:
        raise _missing(conn_id)


def rotate(session: Session, cipher: Cipher) -> int:
    """Encrypt every connection again with the first key, and return their number."""
    stored = session.exec_driver_sql("select conn_id, password, extra from connection order by conn_id for update").all()
    for conn_id, password, extra in stored:
        what = f"Connection {conn_id!r}"
        session.exec_driver_sql(
            "update connection set password = %s, extra = %s where conn_id = %s",
            (password and cipher.rotate(password, what), extra and cipher.rotate(extra, what), conn_id),
        )
    return len(stored)


_ALL_EXCLUDED = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])


def _missing(conn_id: str) -> NotFoundError:
    return NotFoundError(f"There is no connection {conn_id!r}: `paceline connections list` lists all.")
