"""The clock of all decisions: PostgreSQL's, which is the same for all processes, even if the clocks of their machines differ.

Statements call `clock_timestamp()`. Python reads the same clock here, or together with the pending work of a scheduler.
"""

from datetime import datetime

from sqlalchemy import Connection

#: SQL: the transactions that write now. A snapshot does not list the newest ones, those after the last one that ended; but each
#: holds a lock on itself. A statement that follows sees what ended while this was read.
OPEN_TRANSACTIONS = "array(select transactionid::text from pg_locks where locktype = 'transactionid' and mode = 'ExclusiveLock')"


def now(connection: Connection) -> datetime:
    """The current time, in UTC; it advances within a transaction."""
    read: datetime = connection.exec_driver_sql("select clock_timestamp()").scalar_one()
    return read
