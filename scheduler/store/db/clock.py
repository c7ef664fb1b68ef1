"""The clock of all decisions: PostgreSQL's, which is the same for all processes whatever the clocks of their machines show.

Statements call `clock_timestamp()`. Python reads the same clock here, or together with the pending work of a scheduler.
"""

from datetime import datetime

from sqlalchemy import Connection


def now(connection: Connection) -> datetime:
    """The current time, in UTC; it advances within a transaction."""
    read: datetime = connection.exec_driver_sql("select clock_timestamp()").scalar_one()
    return read
