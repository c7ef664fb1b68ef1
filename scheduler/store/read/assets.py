"""Updates of assets, and those that DAGs wait to consume."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from scheduler.store.db import rows
from scheduler.store.read.listing import Filters, Listing, Row, key

#: When an asset that was never updated became known.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ASSET_EVENTS = Listing(
    columns=f"""
        e.id, {key("e.uri")} as asset_number, e.uri, a.name, e.extra, e.dag_id, e.run_id, e.task_id, e.map_index, e.created_by,
        e.created_at, e.partition_key, coalesce((select jsonb_agg(jsonb_build_object(
                      'dag_id', r.dag_id, 'run_id', r.run_id, 'logical_date', r.logical_date,
                      'data_interval_start', r.data_interval_start, 'data_interval_end', r.data_interval_end, 'state', r.state,
                      'start_date', coalesce(r.started_at, r.queued_at), 'end_date', r.ended_at,
                      'partition_key', r.partition_key, 'triggering', true) order by r.id)
                    from dag_run_asset_event c join dag_run r on r.id = c.dag_run_id where c.event_id = e.id), '[]') as created_runs
    """,
    tables="asset_event e join asset a on a.uri = e.uri",
    orders={"id": "e.id", "timestamp": "e.created_at", "source_dag_id": "e.dag_id", "source_task_id": "e.task_id",
            "source_run_id": "e.run_id", "source_map_index": "e.map_index"},
    filtered={"asset_id": key("e.uri"), "name": "a.name"},
    default_order=("timestamp",),
    key="e.id",
)  # fmt: skip
#: Versions of a table that one answer has.
MOST_VERSIONS = 500
#: A version as the columns of `v`, with the number of the asset that the table is.
_VERSION = """
    v.publication, v.published_at, v.published_by, v.dag_id, v.run_id, v.task_id, v.map_index, v.try_number,
    v.metadata_location is null as is_dropped, v.facts
"""


def events_of_run(dag_run_id: int) -> Filters:
    """Updates that a run consumed."""
    filters = ASSET_EVENTS.filters()
    return filters.where(
        f"e.id in (select c.event_id from dag_run_asset_event c where c.dag_run_id = {filters.parameter(dag_run_id)})"
    )


def asset_numbers(connection: Connection, uris: list[str]) -> dict[str, int]:
    """The number of each asset, by URI."""
    numbers = connection.exec_driver_sql(f"select u as uri, {key('u')} as number from unnest(%s::text[]) u", (uris,))
    return {row.uri: row.number for row in numbers}


def asset_facts(connection: Connection) -> dict[str, Row]:
    """By URI of an asset that was updated: since when it is known, and the number of its newest update."""
    facts = connection.exec_driver_sql(
        "select a.uri, a.created_at, (select max(e.id) from asset_event e where e.uri = a.uri) as last_id from asset a"
    )
    return {row["uri"]: row for row in rows.dicts(facts)}


def queued_events(connection: Connection, *, uri: str | None, dag_id: str | None, before: datetime | None) -> list[Row]:
    """Updates that DAGs wait to consume."""
    filters = _waiting(uri, dag_id, before)
    found = connection.exec_driver_sql(
        f"select w.dag_id, w.uri, {key('w.uri')} as asset_number, max(e.created_at) as created_at"
        f" from asset_waiting w join asset_event e on e.id = w.event_id {filters.sql} group by 1, 2 order by 1, 2",
        filters.parameters,
    )
    return rows.dicts(found)


def _waiting(uri: str | None, dag_id: str | None, before: datetime | None) -> Filters:
    filters = Filters({"uri": "w.uri", "dag_id": "w.dag_id", "at": "e.created_at"})
    return filters.equals("uri", uri).equals("dag_id", dag_id).between("at", {"lt": before})


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


def table_versions(connection: Connection, catalog: str, name: str) -> list[Row]:
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
