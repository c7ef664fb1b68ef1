"""The tables whose old snapshots a scheduler removes, one after the other."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from scheduler.store.db import rows

#: A table `i` that no scheduler has visited for a day. If all its versions were old at that visit, it has nothing more to remove.
DUE = """
    i.catalog_name = %(catalog)s and i.iceberg_type is distinct from 'VIEW'
    and not exists (
        select from table_expiry e
         where e.catalog = i.catalog_name and e.namespace = i.table_namespace and e.name = i.table_name
           and (e.visited_at > clock_timestamp() - interval '1 day'
                or not exists (
                    select from table_version v
                     where v.catalog = i.catalog_name and v.namespace = i.table_namespace and v.name = i.table_name
                       and v.published_at > e.visited_at - (clock_timestamp() - %(before)s))))
"""
TAKE = f"""
insert into table_expiry as e (catalog, namespace, name, visited_at)
select i.catalog_name, i.table_namespace, i.table_name, clock_timestamp() from iceberg_tables i
 where {DUE} order by i.table_namespace, i.table_name limit 1
    on conflict (catalog, namespace, name) do update set visited_at = excluded.visited_at
       where e.visited_at <= clock_timestamp() - interval '1 day'
returning namespace, name
"""


@dataclass(frozen=True, slots=True)
class Due:
    """A table whose old snapshots are to be removed."""

    namespace: str
    name: str


def is_due(connection: Connection, catalog: str, before: datetime) -> bool:
    """Whether a table is to be visited for snapshots from before a moment."""
    found = connection.exec_driver_sql(
        f"select 1 from iceberg_tables i where {DUE} limit 1", {"catalog": catalog, "before": before}
    )
    return found.first() is not None


def take(connection: Connection, catalog: str, before: datetime) -> Due | None:
    """The next table that is to be visited. From now on it is. None, too, if another scheduler takes it at this moment."""
    return rows.first(Due, connection.exec_driver_sql(TAKE, {"catalog": catalog, "before": before}))
