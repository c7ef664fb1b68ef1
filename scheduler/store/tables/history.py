"""What the tables were, for people: lists, the history of a table, and where it was at a publication."""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from paceline.states import RUN_UNFINISHED
from scheduler.store.db import rows

#: What a row shows of a publication.
_COLUMNS = """
    v.publication, v.published_at, v.published_by, v.dag_id, v.run_id, v.task_id, v.map_index, v.try_number,
    v.metadata_location is null as is_dropped, v.facts->>'operation' as operation, (v.facts->>'snapshot_id')::bigint as snapshot_id,
    (v.facts->>'added_records')::bigint as added_rows, (v.facts->>'deleted_records')::bigint as deleted_rows,
    (v.facts->>'total_records')::bigint as total_rows, v.metadata_location
"""
#: A version `x` that neither a rollback to a time after %(before)s nor a try needs: a newer one has replaced it by then, also for
#: each try that has yet to be forgotten. The drop of a table goes when all versions before it are gone.
FREE = f"""
    exists (select from table_version n
             where n.catalog = x.catalog and n.namespace = x.namespace and n.name = x.name and n.publication > x.publication
               and n.published_at < %(before)s
               and not exists (select from table_try t where least(t.publication, t.run_publication) < n.publication)
               and not exists (select from table_run t join dag_run r on r.id = t.dag_run_id
                                where t.publication < n.publication and r.state in {RUN_UNFINISHED.sql}))
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
   and (%(namespace)s::text is null or i.table_namespace = %(namespace)s)
 order by 1 limit %(limit)s
"""
HISTORY = f"""
select v.namespace || '.' || v.name as "table", {_COLUMNS}
  from table_version v where v.catalog = %(catalog)s and v.namespace = %(namespace)s and v.name = %(name)s
 order by v.publication desc limit %(limit)s
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
