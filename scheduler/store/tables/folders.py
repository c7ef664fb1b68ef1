"""The folders that the catalog has given to tables, and what is known of files in them that nothing needs."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from scheduler.store.db import clock, rows
from scheduler.store.tables.tries import MAY_CONTINUE

#: Nobody says when a process that was lost long ago writes a last file. So each folder is swept again after these days.
AGAIN_DAYS = 30
#: A clock of the storage may differ from that of the database by these seconds, and `used_at` may be as much too early.
SKEW_S = 60
#: A folder `f` that may have files that nothing needs, and was not visited for some time.
DUE = f"""
    f.catalog = %(catalog)s and (f.visited_at is null or f.visited_at < %(before)s)
    and (f.swept_at is null or f.used_at >= f.swept_at or f.swept_at < clock_timestamp() - interval '{AGAIN_DAYS} days')
"""
TAKE = f"""
update table_folder f set visited_at = clock_timestamp()
  from (select f.catalog, f.location from table_folder f where {DUE}
         order by f.visited_at nulls first limit 1 for update skip locked) due
 where f.catalog = due.catalog and f.location = due.location
returning f.location, f.used_at
"""
#: The start of the oldest try that may still write.
OLDEST_TRY = f"""
select min(t.created_at) from table_try t join task_instance i on i.id = t.task_instance_id
 where i.try_number - t.try_number in (0, 1) and coalesce(i.state, '') in {MAY_CONTINUE.sql}
"""
#: All metadata files that may be read again: those of versions, and those of tries, dead ones included.
POINTERS = """
select metadata_location from table_version where catalog = %(catalog)s and metadata_location is not null
 union select metadata_location from iceberg_tables where catalog_name = %(catalog)s and metadata_location is not null
 union select p.place from table_pending t cross join lateral unnest(t.written || t.base_location || t.location) p (place)
 where p.place is not null
"""
#: Those below a folder, and those below none that the catalog has given: their tables may have files anywhere in the namespace.
NEAR = f"""
select m.metadata_location as place, starts_with(m.metadata_location, %(location)s || '/') as is_inside from ({POINTERS}) m
 where starts_with(m.metadata_location, %(location)s || '/')
    or not exists (select from table_folder f where f.catalog = %(catalog)s and starts_with(m.metadata_location, f.location || '/'))
"""


@dataclass(frozen=True, slots=True)
class Due:
    """A folder that is to be swept."""

    location: str
    used_at: datetime


def note(connection: Connection, catalog: str, location: str) -> None:
    """Note that a folder is given to a new table."""
    connection.exec_driver_sql(
        "insert into table_folder (catalog, location) values (%s, %s) on conflict do nothing", (catalog, location)
    )


def hold(connection: Connection, catalog: str, location: str) -> None:
    """Note a folder that is used by a try, and hold its row until the end of the transaction."""
    connection.exec_driver_sql(
        "insert into table_folder (catalog, location) values (%s, %s)"
        " on conflict (catalog, location) do update set used_at = clock_timestamp()",
        (catalog, location),
    )


def use(connection: Connection, catalog: str, location: str) -> None:
    """Note that a try may put files into a folder from now on. Many tries that use a folder at once change its row once."""
    connection.exec_driver_sql(
        f"""
        update table_folder set used_at = clock_timestamp()
         where catalog = %s and location = %s and used_at < clock_timestamp() - interval '{SKEW_S} seconds'
        """,
        (catalog, location),
    )


def overlapping(connection: Connection, catalog: str, places: list[str], own: str) -> str | None:
    """A folder of another table that one of these places lies in, or that lies in one of them."""
    found: str | None = connection.exec_driver_sql(
        """
        select f.location from table_folder f, unnest(%s::text[]) p (place)
         where f.catalog = %s and f.location <> %s
           and (p.place = f.location or starts_with(p.place, f.location || '/') or starts_with(f.location, p.place || '/'))
         limit 1
        """,
        (places, catalog, own),
    ).scalar_one_or_none()
    return found


def is_due(connection: Connection, catalog: str, older_s: float) -> bool:
    """Whether a folder is to be swept that was not visited for these seconds."""
    before = clock.now(connection) - timedelta(seconds=older_s)
    found = connection.exec_driver_sql(f"select 1 from table_folder f where {DUE} limit 1", {"catalog": catalog, "before": before})
    return found.first() is not None


def take(connection: Connection, catalog: str, before: datetime) -> Due | None:
    """The next folder that is to be swept and was not visited since a moment. From now on it is visited."""
    return rows.first(Due, connection.exec_driver_sql(TAKE, {"catalog": catalog, "before": before}))


def moments(connection: Connection, older_s: float) -> tuple[datetime, datetime]:
    """The moment now, and that from before which no running try has files and nobody else writes."""
    now = clock.now(connection)
    oldest = connection.exec_driver_sql(OLDEST_TRY).scalar_one()
    until = now - timedelta(seconds=older_s)
    return now, until if oldest is None else min(until, oldest - timedelta(seconds=SKEW_S))


def metadata_files(connection: Connection, catalog: str, location: str) -> tuple[list[str], list[str]]:
    """The metadata files in a folder that may be read again, and those that are in no folder of the catalog."""
    found = connection.exec_driver_sql(NEAR, {"catalog": catalog, "location": location}).all()
    return [row.place for row in found if row.is_inside], [row.place for row in found if not row.is_inside]


def swept(connection: Connection, catalog: str, location: str, until: datetime, began: datetime) -> None:
    """Note that a folder has no file from before a moment that nothing needs, found by a sweep that began later."""
    connection.exec_driver_sql(
        "update table_folder set swept_at = %s where catalog = %s and location = %s",
        (min(until, began - timedelta(seconds=SKEW_S)), catalog, location),
    )


def forget(connection: Connection, catalog: str, due: Due) -> bool:
    """Forget an empty folder, unless a try has used it meanwhile."""
    gone = connection.exec_driver_sql(
        "delete from table_folder where catalog = %s and location = %s and used_at = %s", (catalog, due.location, due.used_at)
    )
    return gone.rowcount == 1
