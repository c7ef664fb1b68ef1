"""Crashes of PostgreSQL: how one is known, and until when it may have undone claims, which do not wait for the disk (ADR 4).

The one row of `crash_free` is gone after a crash, be it of the whole server, of a single backend, or of the primary before a
failover: PostgreSQL empties every unlogged table when it recovers. A stop in order keeps the row, as it keeps every claim.
"""

from sqlalchemy import Connection

#: For whoever has just connected, and now and then: from this moment there was no crash. Changes nothing if there was none.
NOTE = "insert into crash_free select clock_timestamp() where not exists (select from crash_free) on conflict do nothing"


def note(connection: Connection) -> None:
    """See NOTE."""
    connection.exec_driver_sql(NOTE)


def settled(connection: Connection, *, seconds: float) -> bool:
    """False for so long after a crash: workers first assert the claims that it undid."""
    return bool(
        connection.exec_driver_sql(
            "select exists (select from crash_free where since < clock_timestamp() - make_interval(secs => %s))", (seconds,)
        ).scalar_one()
    )
