"""Who compares a reproduction with its original: one process at a time, and a scheduler if nobody else does."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.states import RUN_UNFINISHED
from scheduler.store.db import database, rows

#: How often schedulers try to compare a reproduction, and the seconds between two tries.
MOST_TRIES, PAUSE_S = 3, 600
#: Of a reproduction `p` with its run `r`: there is a result for this end of the run.
IS_COMPARED = "p.compared_end is not distinct from r.ended_at"
#: Schedulers will try no more, so there will be no result unless a person asks for it.
IS_GIVEN_UP = f"(p.tries >= {MOST_TRIES} and p.tried_end is not distinct from r.ended_at)"
#: There is something to compare.
IS_COMPARABLE = """
    (exists (select from dag_run o where o.id = p.original_id)
     and exists (select from iceberg_namespace_properties n where n.catalog_name = p.catalog and n.namespace = p.scratch))
"""
#: What both runs have written stays until then, but not for longer than a week: no scheduler may have tables.
IS_AWAITED = f"""
    (r.state in {RUN_UNFINISHED.sql}
     or r.ended_at > clock_timestamp() - interval '7 days' and exists (
        select from reproduction p where p.dag_run_id = r.id and not ({IS_COMPARED}) and not {IS_GIVEN_UP} and {IS_COMPARABLE}))
"""
DUE = f"""
    p.catalog = %(catalog)s and r.state not in {RUN_UNFINISHED.sql} and not ({IS_COMPARED}) and not {IS_GIVEN_UP}
    and (p.tried_end is distinct from r.ended_at or p.tried_at is null
         or p.tried_at < clock_timestamp() - make_interval(secs => {PAUSE_S}))
    and {IS_COMPARABLE} and not exists (select from dag_run o where o.id = p.original_id and o.state in {RUN_UNFINISHED.sql})
"""
TAKE = f"""
update reproduction p
   set tries = case when p.tried_end = due.ended_at then p.tries else 0 end + 1, tried_at = clock_timestamp(),
       tried_end = due.ended_at, failure = null
  from (select p.dag_run_id, r.dag_id, r.run_id, r.ended_at from reproduction p join dag_run r on r.id = p.dag_run_id
         where {DUE} order by r.ended_at limit 1 for update of p skip locked) due
 where p.dag_run_id = due.dag_run_id
returning p.dag_run_id as id, due.dag_id, due.run_id
"""
#: The lock of a session. Other programs in the database have other numbers, and other installations another schema.
CLAIM = """
select pg_try_advisory_lock(hashtextextended(format('paceline reproduction %%s.%%s', current_schema(), %(id)s::bigint), 0))
"""
#: As in database.TCP: PostgreSQL notices within half a minute that the host of a session has vanished, and frees its locks.
NOTICE_LOST_HOSTS = """
select set_config(name, value, false) from (values
    ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '4')) one (name, value)
"""


@dataclass(frozen=True, slots=True)
class Due:
    """A reproduction that a scheduler compares now."""

    id: int
    dag_id: str
    run_id: str


@contextlib.contextmanager
def claimed(engine: Engine, dag_run_id: int) -> Iterator[bool]:
    """Whether this process alone may compare a reproduction or drop its tables, until the end of the block.

    The claim is a lock of a session without a transaction: it keeps no row version from vacuum, and ends with its process.
    """
    with engine.connect() as connection:
        connection.detach()  # so that the end of the block closes the session, with its lock
        with database.autocommit(connection):
            connection.exec_driver_sql(NOTICE_LOST_HOSTS)
            try:
                yield bool(connection.exec_driver_sql(CLAIM, {"id": dag_run_id}).scalar_one())
            finally:
                with contextlib.suppress(DBAPIError):  # a lost session has lost its lock
                    connection.exec_driver_sql("select pg_advisory_unlock_all()")  # PostgreSQL ends a session a moment later


def is_due(connection: Connection, catalog: str) -> bool:
    """Whether a reproduction has ended that nobody has compared, and that a scheduler may try now."""
    found = connection.exec_driver_sql(
        f"select 1 from reproduction p join dag_run r on r.id = p.dag_run_id where {DUE} limit 1", {"catalog": catalog}
    )
    return found.first() is not None


def take(connection: Connection, catalog: str) -> Due | None:
    """The reproduction that has waited longest, whose try begins now. A scheduler that is lost has used up this try."""
    return rows.first(Due, connection.exec_driver_sql(TAKE, {"catalog": catalog}))


def fail(connection: Connection, due: Due, reason: str) -> None:
    """Note why a try has failed."""
    connection.exec_driver_sql("update reproduction set failure = %s where dag_run_id = %s", (reason, due.id))


def give_back(connection: Connection, due: Due, *, at_once: bool) -> None:
    """A try was no try: another process compares it, or `at_once` this one stops."""
    connection.exec_driver_sql(
        "update reproduction set tries = greatest(tries - 1, 0), tried_at = case when %s then null else tried_at end"
        " where dag_run_id = %s",
        (at_once, due.id),
    )
