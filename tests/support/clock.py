"""A clock that a test moves: that of PostgreSQL, the only clock that decisions use.

All statements call `clock_timestamp()`, `statement_timestamp()` or `now()` without a schema. In the test's own database a schema in
front of pg_catalog has functions of these names, which add an offset. Column defaults and functions with a search path of their own
(those that write events and notices) keep the real time.
"""

from datetime import datetime, timedelta
from typing import Any

import psycopg2

from scheduler.settings import Settings

SHADOW = """
create schema moved;
create table moved.offset_by (value interval not null, frozen timestamptz);
insert into moved.offset_by values ('0');
create function moved.clock_timestamp() returns timestamptz language sql volatile as
    'select coalesce(frozen, pg_catalog.clock_timestamp() + value) from moved.offset_by';
create function moved.statement_timestamp() returns timestamptz language sql stable as
    'select coalesce(frozen, pg_catalog.statement_timestamp() + value) from moved.offset_by';
create function moved.now() returns timestamptz language sql stable as
    'select coalesce(frozen, pg_catalog.now() + value) from moved.offset_by';
do $$ begin
    execute format('alter database %I set search_path = moved, pg_catalog, public', current_database());
end $$;
"""
#: Processes send heartbeats all the time, so moving the clock must not make them silent.
MOVE = """
update moved.offset_by set value = value + %(by)s;
update public.process set heartbeat_at = heartbeat_at + %(by)s where stopped_at is null;
"""


class Clock:
    """Applies to connections that are opened after it is created."""

    def __init__(self, settings: Settings) -> None:
        self._connection = psycopg2.connect(settings.database_url)
        self._connection.autocommit = True
        self._do(SHADOW)

    def advance(self, by: timedelta) -> None:
        self._do(MOVE, {"by": by})

    def freeze(self, at: datetime) -> None:
        """Stop the clock at this time."""
        self._do("update moved.offset_by set frozen = %(at)s", {"at": at})

    def close(self) -> None:
        self._connection.close()

    def _do(self, statements: str, parameters: dict[str, Any] | None = None) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statements, parameters)
