"""SQL in the database of a connection: PostgreSQL through psycopg2, any other through the hook of an installed package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError
from paceline.tables import sql

POSTGRES = "postgres"
#: The keys in the extra of a PostgreSQL connection that are not for its client.
_NOT_OPTIONS = frozenset({"cursor", "iam", "redshift", "cluster-identifier", "aws_conn_id", "sqlalchemy_scheme"})


def run(
    conn_id: str,
    statements: Sequence[str],
    parameters: Any,
    *,
    handler: Callable[[Any], Any],
    database: str | None = None,
    autocommit: bool = False,
    hook_params: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run statements in one transaction, or each by itself with `autocommit`; what `handler` makes of the cursor after each.

    `:name` in a statement for PostgreSQL is the parameter of that name. Other systems get statements and parameters unchanged.
    """
    connection = Connection.get(conn_id)
    is_postgres = connection.conn_type == POSTGRES
    client = _postgres(connection, database) if is_postgres else connection.get_hook(hook_params=dict(hook_params or {})).get_conn()
    results = []
    with closing(client):
        if autocommit:
            client.autocommit = True
        with closing(client.cursor()) as cursor:
            for statement in statements:
                cursor.execute(*_call(statement, parameters, is_postgres=is_postgres))
                results.append(handler(cursor))
        if not autocommit:
            client.commit()
    return results


def _call(statement: str, parameters: Any, *, is_postgres: bool) -> tuple[Any, ...]:
    if not parameters:
        return (statement,)
    if is_postgres and isinstance(parameters, Mapping):
        text, used = sql.bound(statement, parameters)
        return (text, {name: parameters[name] for name in used if name in parameters}) if used else (text,)
    return statement, parameters


def _postgres(connection: Connection, database: str | None) -> Any:
    import psycopg2

    extra = {name: value for name, value in connection.extra_dejson.items() if name not in _NOT_OPTIONS}
    named: dict[str, Any] = {
        "host": connection.host, "port": connection.port, "user": connection.login, "password": connection.password,
        "dbname": database or connection.schema,
    }  # fmt: skip
    try:
        return psycopg2.connect(**extra | {name: value for name, value in named.items() if value is not None})
    except psycopg2.ProgrammingError as error:
        raise PacelineError(f"The extra of connection {connection.conn_id!r} is not understood: {error}") from None
