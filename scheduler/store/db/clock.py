"""The clock that decisions go by: PostgreSQL's, which all processes share whatever the clocks of their machines show.

Statements call `clock_timestamp()`. Python reads the same clock here, or gets it with the pending work of a scheduler.
"""

from datetime import datetime

from sqlalchemy import Connection


def now(connection: Connection) -> datetime:
    """The time, UTC-aware; it goes on within a transaction."""
    read: datetime = connection.exec_driver_sql("select clock_timestamp()").scalar_one()
    return read
