"""What the tables were: their history for people, what runs have read, and the tables whose old snapshots are to be removed."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from scheduler.store.db import rows
from scheduler.store.tables import folders
from scheduler.store.tables.comparisons import IS_AWAITED
from scheduler.store.tables.pointers import Pinned

#: What a row shows of a publication.
_COLUMNS = """
    v.publication, v.published_at, v.published_by, v.dag_id, v.run_id, v.task_id, v.map_index, v.try_number,
    v.metadata_location is null as is_dropped, v.facts->>'operation' as operation, (v.facts->>'snapshot_id')::bigint as snapshot_id,
    (v.facts->>'added_records')::bigint as added_rows, (v.facts->>'deleted_records')::bigint as deleted_rows,
    (v.facts->>'total_records')::bigint as total_rows, v.metadata_location
"""
#: A version `x` that neither a rollback to a time after %(before)s nor a try needs: a newer one has replaced it by then, also for
#: each try that has yet to be forgotten, and for the comparison of a reproduction. The drop of a table goes when all versions
#: before it are gone.
FREE = f"""
    exists (select from table_version n
             where n.catalog = x.catalog and n.namespace = x.namespace and n.name = x.name and n.publication > x.publication
               and n.published_at < %(before)s
               and not exists (select from table_try t where least(t.publication, t.run_publication) < n.publication)
               and not exists (select from table_run t join dag_run r on r.id = t.dag_run_id
                                where t.publication < n.publication and {IS_AWAITED}))
    or x.metadata_location is null and not exists (
       select from table_version o
        where o.catalog = x.catalog and o.namespace = x.namespace and o.name = x.name and o.publication <> x.publication)
"""
LIST = f"""
select i.table_namespace || '.' || i.table_name as "table", {_COLUMNS}
  from iceberg_tables i
  left join lateral (
       select * from table_version v where v.catalog = i.catalog_name and v.namespace = i.table_namespace and v.name = i.table_name
        order by v.publication desc limit 1) v on true
 where i.catalog_name = %(catalog)s and i.iceberg_type is distinct from 'VIEW'
   and (i.table_namespace = %(namespace)s or %(namespace)s::text is null and not exists (
        select from reproduction p where p.catalog = i.catalog_name and starts_with(i.table_namespace, p.scratch || '.')))
 order by 1 limit %(limit)s
"""
HISTORY = f"""
select v.namespace || '.' || v.name as "table", {_COLUMNS}
  from table_version v where v.catalog = %(catalog)s and v.namespace = %(namespace)s and v.name = %(name)s
 order by v.publication desc limit %(limit)s
"""
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
NOTE_READ = """
insert into table_read (dag_run_id, task_instance_id, try_number, namespace, name, publication, snapshot_id, metadata_location)
select i.dag_run_id, i.id, %(try_number)s, %(namespace)s, %(name)s,
       (select v.publication from table_version v
         where v.catalog = %(catalog)s and v.namespace = %(namespace)s and v.name = %(name)s and v.metadata_location = %(base)s
           and v.publication <= %(publication)s
         order by v.publication desc limit 1),
       %(snapshot)s, %(base)s
  from task_instance i where i.id = %(ti_id)s
    on conflict do nothing
"""
OF_RUN = """
with run as (
    select id from dag_run where dag_id = %(dag_id)s and run_id = %(run_id)s
), used as (
    select t.task_instance_id, t.try_number, t.namespace, t.name, t.publication as read, t.snapshot_id, null::bigint as written
      from table_read t, run where t.dag_run_id = run.id
     union all
    select v.task_instance_id, v.try_number, v.namespace, v.name, null, null, v.publication
      from run join task_instance i on i.dag_run_id = run.id
      join table_version v on v.catalog = %(catalog)s and v.task_instance_id = i.id
)
select i.task_id, i.map_index, u.try_number, u.namespace || '.' || u.name as "table", max(u.read) as read_publication,
       max(u.snapshot_id) as snapshot_id, max(u.written) as written_publication
  from used u join task_instance i on i.id = u.task_instance_id
 group by 1, 2, 3, 4 order by 3, 1, 2, 4 limit %(limit)s
"""


def tables(connection: Connection, catalog: str, namespace: str | None, limit: int) -> list[dict[str, Any]]:
    """The current tables with their last publications, by name."""
    return rows.dicts(connection.exec_driver_sql(LIST, {"catalog": catalog, "namespace": namespace, "limit": limit}))


def history(connection: Connection, catalog: str, namespace: str, name: str, limit: int) -> list[dict[str, Any]]:
    """The publications of a table, newest first."""
    return rows.dicts(
        connection.exec_driver_sql(HISTORY, {"catalog": catalog, "namespace": namespace, "name": name, "limit": limit})
    )


def locations(connection: Connection, catalog: str, namespace: str, name: str) -> list[str]:
    """The metadata files to which a rollback of a table may go, oldest first."""
    found = connection.exec_driver_sql(
        """
        select metadata_location from table_version
         where catalog = %s and namespace = %s and name = %s and metadata_location is not null order by publication
        """,
        (catalog, namespace, name),
    )
    return list(dict.fromkeys(found.scalars()))


def prune(connection: Connection, catalog: str, namespace: str, name: str, before: datetime) -> None:
    """Delete the versions of a table from before a moment that neither a rollback to a later moment nor a try needs."""
    connection.exec_driver_sql(
        f"""
        delete from table_version x
         where x.catalog = %(catalog)s and x.namespace = %(namespace)s and x.name = %(name)s
           and x.published_at < %(before)s and ({FREE})
        """,
        {"catalog": catalog, "namespace": namespace, "name": name, "before": before},
    )


def at(connection: Connection, catalog: str, namespace: str, name: str, publication: int) -> dict[str, Any] | None:
    """The metadata file and facts of a table after a publication; None if it had no publication until then."""
    return rows.first_dict(
        connection.exec_driver_sql(
            """
            select publication, metadata_location, facts from table_version
             where catalog = %s and namespace = %s and name = %s and publication <= %s order by publication desc limit 1
            """,
            (catalog, namespace, name, publication),
        )
    )


def last(connection: Connection) -> int:
    """The number of the last publication."""
    return int(connection.exec_driver_sql("select number from table_publication").scalar_one())


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


def take_due(connection: Connection, catalog: str, before: datetime) -> Due | None:
    """The next table that is to be visited. From now on it is. None, too, if another scheduler takes it at this moment."""
    return rows.first(Due, connection.exec_driver_sql(TAKE, {"catalog": catalog, "before": before}))


@dataclass(frozen=True, slots=True)
class Read:
    """A table as a try first saw it."""

    namespace: str
    name: str
    metadata_location: str
    snapshot_id: int | None


def note_read(connection: Connection, catalog: str, attempt: Pinned, folder: str, read: Read | None) -> None:
    """Note that a try uses the folder of a table, and has read the table; None: it has created it."""
    folders.use(connection, catalog, folder)
    if read is not None:
        connection.exec_driver_sql(
            NOTE_READ,
            {
                "ti_id": attempt.task_instance_id, "try_number": attempt.try_number, "publication": attempt.publication,
                "catalog": catalog, "namespace": read.namespace, "name": read.name, "base": read.metadata_location,
                "snapshot": read.snapshot_id,
            },
        )  # fmt: skip


def used_by_run(connection: Connection, catalog: str, dag_id: str, run_id: str, limit: int) -> list[dict[str, Any]]:
    """The tables that the tries of a run have read and written, with the publications."""
    values = {"catalog": catalog, "dag_id": dag_id, "run_id": run_id, "limit": limit}
    return rows.dicts(connection.exec_driver_sql(OF_RUN, values))
