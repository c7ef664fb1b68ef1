"""Crashes of PostgreSQL: how they are detected, and until when claims, which do not wait for the disk, may be undone (ADR 4).

The only row of the unlogged table `crash_free` is gone after a crash of the server, of a single backend, or of the primary before
a failover, because PostgreSQL empties unlogged tables when it recovers. After a clean shutdown, the row and all claims exist.
"""

from sqlalchemy import Connection

#: Records that there has been no crash from this moment on. It is run on new connections and regularly, and keeps an existing row.
NOTE = "insert into crash_free select clock_timestamp() where not exists (select from crash_free) on conflict do nothing"


def note(connection: Connection) -> None:
    """Run NOTE."""
    connection.exec_driver_sql(NOTE)


def settled(connection: Connection, *, seconds: float) -> bool:
    """Whether the last crash was at least `seconds` ago, so that workers have repeated the claims that it undid."""
    return bool(
        connection.exec_driver_sql(
            "select exists (select from crash_free where since < clock_timestamp() - make_interval(secs => %s))", (seconds,)
        ).scalar_one()
    )
