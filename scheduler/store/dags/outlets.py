"""Successes of tasks with outlets, and publications of streaming queries: taken once, to be stored as updates of assets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from paceline.authoring import asset
from paceline.authoring.timetables.base import Partition

#: Whether the update of a table by a streaming query, which could not be stored, may be tried again. `streams` is true before.
MAY_STREAM = "coalesce((facts #>> '{streams,until}')::timestamptz <= clock_timestamp(), true)"
#: The key of the XCom with the extras of a task's updates: {uri: {"extra": ...}}.
XCOM_KEY = "outlet_events"


@dataclass(frozen=True, slots=True)
class SucceededTask:
    """A task instance with outlets that succeeded, and the extras of its updates by URI."""

    version_id: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    at: datetime
    extras: Mapping[str, Mapping[str, Any]]
    #: That of its run.
    partition: Partition | None = None
    #: Those that the task gave its updates, by URI.
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The notice of its success. Of a task that runs on, a negative number, the URI of the only table that it has updated, its
    #: catalog and the publication.
    notice_id: int = 0
    table: str | None = None
    catalog: str | None = None
    publication: int | None = None


def take_successes(connection: Connection, *, limit: int) -> list[SucceededTask]:
    """Take and end the oldest notices of tasks that updated assets, except those that another scheduler has locked."""
    rows = connection.exec_driver_sql(
        """
        with taken as (
            select id from notice
             where kind = 'asset' and ended_at is null and (claimed_until is null or claimed_until <= clock_timestamp())
             order by id limit %(limit)s for update skip locked
        ), ended as (
            update notice n set ended_at = clock_timestamp(), attempts = n.attempts + 1 from taken where n.id = taken.id
            returning n.id, n.task_instance_id, n.created_at
        )
        select e.id as notice_id, r.version_id, r.dag_id, r.run_id, t.task_id, t.map_index, e.created_at as at, x.value as events,
               r.partition_key, r.partition_date, v.tables
          from ended e
          join task_instance t on t.id = e.task_instance_id
          join dag_run r on r.id = t.dag_run_id
          left join xcom x on x.task_instance_id = t.id and x.key = %(key)s
          left join lateral (  -- what its success has published, without the epochs of a streaming query, see take_streamed
               select jsonb_object_agg(%(table)s || v.namespace || '.' || v.name, v.facts || jsonb_build_object(
                          'publication', v.publication)) as tables
                 from table_version v
                where v.task_instance_id = t.id
                  and v.publication = (select max(publication) from table_version
                                        where task_instance_id = t.id and not facts ?| array['streams', 'streamed'])
                  and v.published_at >= t.started_at) v on true
         order by e.id
        """,
        {"limit": limit, "key": XCOM_KEY, "table": asset.TABLE},
    )
    return [_success(dict(row)) for row in rows.mappings()]


def take_streamed(connection: Connection, *, limit: int) -> list[SucceededTask]:
    """Take the oldest publications of streaming queries, whose tasks run on, except those that another scheduler has locked."""
    rows = connection.exec_driver_sql(
        f"""
        with taken as (
            select catalog, namespace, name, publication from table_version
             where facts ? 'streams' and {MAY_STREAM} order by publication limit %(limit)s for update skip locked
        ), marked as (
            update table_version v set facts = v.facts - 'streams' || jsonb_build_object('streamed', v.facts->'streams')
              from taken k
             where (v.catalog, v.namespace, v.name, v.publication) = (k.catalog, k.namespace, k.name, k.publication)
            returning v.*
        ), of_task as (
            select m.*, %(table)s || m.namespace || '.' || m.name as uri, row_number() over (order by m.publication, m.name) as no
              from marked m
        )
        select -m.no as notice_id, r.version_id, r.dag_id, r.run_id, t.task_id, t.map_index, m.published_at as at, null as events,
               r.partition_key, r.partition_date, m.uri as "table", m.catalog, m.publication,
               jsonb_build_object(m.uri, m.facts || jsonb_build_object('publication', m.publication)) as tables
          from of_task m
          join task_instance t on t.id = m.task_instance_id and 'asset' = any (t.notify)
          join dag_run r on r.id = t.dag_run_id
         order by m.no
        """,
        {"limit": limit, "table": asset.TABLE},
    )
    return [_success(dict(row)) for row in rows.mappings()]


def set_aside(connection: Connection, broken: Mapping[int, str], successes: Mapping[int, SucceededTask]) -> None:
    """Open these notices again, with the reasons why their updates could not be stored: a later release may be able to.

    Each attempt waits a minute longer than the one before it, at most an hour. `successes` has what was taken, by notice. Of a task
    that runs on, the publication waits.
    """
    ended = {notice: reason for notice, reason in broken.items() if successes[notice].publication is None}
    connection.exec_driver_sql(
        """
        update notice n
           set ended_at = null, error = failed.reason,
               claimed_until = clock_timestamp() + make_interval(mins => least(n.attempts, 60))
          from unnest(%s::bigint[], %s::text[]) failed (id, reason)
         where n.id = failed.id
        """,
        (list(ended), list(ended.values())),
    )
    streamed = [successes[notice] for notice in broken if notice not in ended]
    connection.exec_driver_sql(
        """
        with failed as (
            select v.catalog, v.namespace, v.name, v.publication,
                   coalesce((v.facts #>> '{streamed,attempts}')::int, 0) + 1 as attempts
              from unnest(%s::text[], %s::bigint[], %s::text[]) f (catalog, publication, uri)
              join table_version v on v.catalog = f.catalog and v.publication = f.publication
                                  and %s || v.namespace || '.' || v.name = f.uri
        )
        update table_version v
           set facts = v.facts - 'streamed' || jsonb_build_object('streams', jsonb_build_object(
                   'attempts', f.attempts, 'until', clock_timestamp() + make_interval(mins => least(f.attempts, 60))))
          from failed f
         where (v.catalog, v.namespace, v.name, v.publication) = (f.catalog, f.namespace, f.name, f.publication)
        """,
        ([one.catalog for one in streamed], [one.publication for one in streamed], [one.table for one in streamed], asset.TABLE),
    )


def _success(row: dict[str, Any]) -> SucceededTask:
    """The data that a task stored about its updates, by URI; any other content of that XCom is ignored."""
    stored, key, date = row.pop("events"), row.pop("partition_key"), row.pop("partition_date")
    tables = {uri: _of_table(facts) for uri, facts in (row.pop("tables") or {}).items()}
    events = {uri: one for uri, one in stored.items() if isinstance(one, dict)} if isinstance(stored, dict) else {}
    return SucceededTask(
        **row,
        extras=tables
        | {uri: tables.get(uri, {}) | one["extra"] for uri, one in events.items() if isinstance(one.get("extra"), dict)},
        partition=None if key is None else Partition(key, date),
        partitions={uri: one["partitions"] for uri, one in events.items() if isinstance(one.get("partitions"), list)},
    )


#: The extra of an update of a table, by the facts of its version.
_FACTS = {
    "publication": "publication", "snapshot_id": "snapshot_id", "operation": "operation", "added_records": "rows_added",
    "deleted_records": "rows_removed", "total_records": "rows", "schema_change": "schema_change",
}  # fmt: skip


def _of_table(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot, the rows that it added and removed, and the change of the schema; no rows were removed if none is counted."""
    counts = {"added_records": 0, "deleted_records": 0} if "snapshot_id" in facts else {}
    found = counts | dict(facts)
    return {name: found[key] for key, name in _FACTS.items() if key in found}
