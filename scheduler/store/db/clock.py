"""The clock of all decisions: PostgreSQL's, which is the same for all processes, even if the clocks of their machines differ.

Statements call `clock_timestamp()`. Python reads the same clock here, or together with the pending work of a scheduler.
"""

from datetime import datetime

from sqlalchemy import Connection

#: SQL: the transactions that write now, by the lock that each holds on itself. A snapshot does not list those that are newer than
#: the last one that ended. A statement that follows sees the rows of transactions that end while this one runs.
OPEN_TRANSACTIONS = "array(select transactionid::text from pg_locks where locktype = 'transactionid' and mode = 'ExclusiveLock')"


def now(connection: Connection) -> datetime:
    """The current time, in UTC; it advances within a transaction."""
    time: datetime = connection.exec_driver_sql("select clock_timestamp()").scalar_one()
    return time


def alive(seconds: str) -> str:
    """SQL: a process `p` has not stopped, and its heartbeat is at most so many seconds old."""
    return f"p.stopped_at is null and p.heartbeat_at >= clock_timestamp() - make_interval(secs => {seconds})"


def silent(seconds: str) -> str:
    """SQL: a process `p` has neither stopped nor sent a heartbeat for so many seconds."""
    return f"p.stopped_at is null and p.heartbeat_at < clock_timestamp() - make_interval(secs => {seconds})"


def lost(seconds: str, *, at: str = "clock_timestamp()") -> str:
    """SQL: a process `p` is silent and can be declared lost. After a restart or crash of PostgreSQL, its timeout starts again."""
    beat = "greatest(p.heartbeat_at, pg_postmaster_start_time(), (select since from crash_free))"
    return f"p.stopped_at is null and {beat} < {at} - make_interval(secs => {seconds})"


#: The timeout of a process `p` by its kind.
TIMEOUT_OF_KIND = "case p.kind when 'worker' then %(worker)s when 'waiter' then %(waiter)s else %(scheduler)s end"
ALIVE = alive("%(silent)s")
SILENT = silent("%(silent)s")
#: A queue has the places of its live workers.
LIVE_WORKER = f"p.kind = 'worker' and {ALIVE}"
