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
