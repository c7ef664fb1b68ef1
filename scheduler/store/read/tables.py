"""Iceberg tables as pages show them: what is current, and what each publication changed."""

from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from scheduler.store.db import rows
from scheduler.store.read.listing import Row

#: Versions of a table that one answer has.
MOST_VERSIONS = 500
#: A version as the columns of `v`, with the number of the asset that the table is.
_VERSION = """
    v.publication, v.published_at, v.published_by, v.dag_id, v.run_id, v.task_id, v.map_index, v.try_number,
    v.metadata_location is null as is_dropped, v.facts
"""


def tables(connection: Connection, catalog: str, *, name: str | None, limit: int, offset: int) -> tuple[list[Row], int]:
    """The current tables of a catalog by name, each with its newest version, and the number of all. `name` is a part of it."""
    values: dict[str, Any] = {"catalog": catalog, "part": name, "limit": limit, "offset": offset}
    found = rows.dicts(
        connection.exec_driver_sql(
            f"""
            with named as (
                select table_namespace as namespace, table_name as name, count(*) over () as total from iceberg_tables
                 where catalog_name = %(catalog)s and iceberg_type is distinct from 'VIEW'
                   and (%(part)s::text is null or position(lower(%(part)s) in lower(table_namespace || '.' || table_name)) > 0)
                 order by 1, 2 limit %(limit)s offset %(offset)s
            )
            select n.namespace || '.' || n.name as name, n.total, {_VERSION}
              from named n left join lateral (
                   select * from table_version o where o.catalog = %(catalog)s and o.namespace = n.namespace and o.name = n.name
                    order by o.publication desc limit 1) v on true
             order by 1
            """,
            values,
        )
    )
    return found, found[0]["total"] if found else 0


def versions(connection: Connection, catalog: str, name: str) -> list[Row]:
    """The versions of a table, the newest first, also of one that was dropped. NotFoundError."""
    namespace, _, table = name.rpartition(".")
    found = rows.dicts(
        connection.exec_driver_sql(
            f"""
            select {_VERSION} from table_version v where v.catalog = %s and v.namespace = %s and v.name = %s
             order by v.publication desc limit {MOST_VERSIONS}
            """,
            (catalog, namespace, table),
        )
    )
    if not found:
        raise NotFoundError(f"The catalog {catalog!r} has no table {name!r}: `paceline tables list` shows all.")
    return found
