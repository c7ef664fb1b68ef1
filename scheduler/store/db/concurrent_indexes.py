"""Builds the indexes of migrations beside work: CREATE INDEX CONCURRENTLY blocks no write, and cannot be part of a transaction.

A migration lists the indexes that it adds to existing tables as `indexes`: {name: what follows ON}. No code may need one to be
correct, because processes run before it is complete.
"""

import logging
from collections.abc import Mapping

from sqlalchemy import Connection, Engine

log = logging.getLogger("paceline.schema")

#: The advisory lock of the process that builds; any number without another use. No process waits for it: a waiting one would have a
#: snapshot, for whose end CREATE INDEX CONCURRENTLY waits.
BUILD_LOCK = 7_223_464
#: Whether each index is valid; one whose build was interrupted is not.
VALID = """
select c.relname, i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid
 where c.relnamespace = current_schema()::regnamespace and c.relname = any(%s)
"""


def create(connection: Connection, indexes: Mapping[str, str]) -> None:
    """Create all in this transaction, for a new database."""
    for name, definition in indexes.items():
        connection.exec_driver_sql(f"create index {name} on {definition}")


def build(engine: Engine, indexes: Mapping[str, str]) -> None:
    """Build the indexes that are missing or were interrupted. If another process builds now, it is left to that one."""
    with engine.connect() as connection:
        is_valid = {row.relname: row.indisvalid for row in connection.exec_driver_sql(VALID, (list(indexes),))}
    missing = [name for name in indexes if not is_valid.get(name)]
    if not missing:
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not connection.exec_driver_sql("select pg_try_advisory_lock(%s)", (BUILD_LOCK,)).scalar_one():
            log.info("Another process builds the indexes %s.", ", ".join(missing))
            return
        try:
            connection.exec_driver_sql("set statement_timeout = 0")
            for name in missing:
                if name in is_valid:
                    connection.exec_driver_sql(f"drop index concurrently if exists {name}")
                connection.exec_driver_sql(f"create index concurrently if not exists {name} on {indexes[name]}")
        finally:
            connection.invalidate()  # ends the session, and with it the lock and the setting
