"""Updates of assets: stored as events, collected for each DAG that waits for them, and consumed by the run that they trigger."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.authoring import asset
from paceline.authoring.asset import AssetEvent, check_partition_key
from paceline.authoring.timetables.base import Partition
from paceline.exceptions import NotFoundError, PacelineError
from scheduler.store.dags import partitions
from scheduler.store.dags.outlets import MAY_STREAM, SucceededTask
from scheduler.store.db import sqlstates
from scheduler.store.db.rows import Reader

#: Whether a notice of an update is open, a DAG has collected updates, or a streaming query has published: see
#: store/upkeep/pending_work.
PENDING = f"""
    exists (select from notice where kind = 'asset' and ended_at is null
                                 and (claimed_until is null or claimed_until <= clock_timestamp()))
    or exists (select from asset_waiting)
    or exists (select from table_version where facts ? 'streams' and {MAY_STREAM})
"""
#: The newest events of one inlet that a task can read.
MAX_EVENTS = 1000
EVENT_COLUMNS = "e.uri, a.name, e.extra, e.created_at, e.dag_id, e.run_id, e.task_id, e.map_index, e.partition_key"
OF_RUN = f"""
select {EVENT_COLUMNS}
  from dag_run_asset_event c join asset_event e on e.id = c.event_id join asset a on a.uri = e.uri
 where c.dag_run_id = %s order by e.id
"""
OF_ASSETS = f"""
select {EVENT_COLUMNS}
  from unnest(%s::text[]) n (uri)
 cross join lateral (select * from asset_event where uri = n.uri order by id desc limit %s) e
  join asset a on a.uri = e.uri
 order by e.id
"""
#: The URI of the asset with a name: as active DAGs define it now, else as it was last updated, else the name itself.
NAMED = """
select uri
  from (select e.key as uri, 1 as place
          from dag d join dag_version v on v.id = d.version_id cross join jsonb_each_text(v.data->'asset_names') e
         where d.is_active and e.value = %s
        union all
        select uri, 2 from asset where name = %s
        union all
        select %s::text, 3
         where exists (select from dag d join dag_version v on v.id = d.version_id where d.is_active and (
               v.asset_uris @> to_jsonb(%s::text)
               or v.data->'tasks' @> jsonb_build_array(jsonb_build_object('outlets', jsonb_build_array(%s::text)))))) n
 order by place, uri limit 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An update of an asset, by a task or by `created_by`."""

    uri: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    by: SucceededTask | None = None
    created_by: str = "task"
    partition: Partition | None = None


@dataclass(frozen=True, slots=True)
class _StoredEvent:
    """A row with EVENT_COLUMNS. An update by a person has no task."""

    uri: str
    name: str
    extra: dict[str, Any]
    created_at: datetime
    dag_id: str | None
    run_id: str | None
    task_id: str | None
    map_index: int | None
    partition_key: str | None

    def as_authored(self) -> AssetEvent:
        return AssetEvent(
            asset=asset.Asset(name=self.name, uri=self.uri),
            extra=self.extra,
            timestamp=self.created_at,
            source_dag_id=self.dag_id,
            source_run_id=self.run_id,
            source_task_id=self.task_id,
            source_map_index=self.map_index,
            partition_key=self.partition_key,
        )


@dataclass(frozen=True, slots=True)
class Collected:
    """A DAG, its newest version, and the URIs that were updated since its last asset-triggered run."""

    dag_id: str
    version_id: int
    uris: frozenset[str]


def store(connection: Connection, updates: Sequence[Update], names: Mapping[str, str] | None = None) -> None:
    """Store the updates, and collect them for every active DAG whose schedule has these assets, paused or not.

    Those with a partition are only for schedules of partitions, and the others for all other schedules.
    """
    if not updates:
        return
    # In one order, so that two schedulers with the same assets cannot deadlock. An asset may have a new name since.
    for uri in sorted({update.uri for update in updates}):
        name = (names or {}).get(uri)
        connection.exec_driver_sql(
            "insert into asset (uri, name) values (%(uri)s, coalesce(%(name)s, %(uri)s))"
            " on conflict (uri) do update set name = excluded.name"
            " where %(name)s::text is not null and asset.name <> excluded.name",
            {"uri": uri, "name": name},
        )
    rows = psycopg2.extras.Json([_values(update) for update in updates])
    stored = connection.exec_driver_sql(
        """
        with given as (
            select n.* from jsonb_to_recordset(%(rows)s::jsonb) as
                   n (uri text, extra jsonb, dag_id text, run_id text, task_id text, map_index int, created_by text, at timestamptz,
                      partition_key text, partition_date timestamptz)
        ), stored as (
            insert into asset_event (uri, extra, dag_id, run_id, task_id, map_index, created_by, created_at,
                                     partition_key, partition_date)
            select uri, extra, dag_id, run_id, task_id, map_index, created_by, coalesce(at, clock_timestamp()),
                   partition_key, partition_date from given
            returning id, uri, partition_key
        ), named as (  -- Schedules have an asset by its URI, or by its name.
            select s.id, s.partition_key, n.uri
              from stored s join asset a on a.uri = s.uri cross join lateral (values (s.uri), (%(named)s || a.name)) n (uri)
        ), waiting as (
            insert into asset_waiting (dag_id, uri, event_id)
            select d.dag_id, s.uri, s.id
              from named s
              join dag_version v on v.asset_uris @> to_jsonb(s.uri) and v.data->'schedule'->>'kind' <> 'partitioned_assets'
              join dag d on d.version_id = v.id and d.is_active
             where s.partition_key is null
             order by d.dag_id, s.id
        )
        select id, uri, partition_key from named where partition_key is not null order by id
        """,
        {"rows": rows, "named": asset.NAMED},
    )
    partitions.collect(connection, stored.all())


def collected(connection: Connection, *, without: Collection[str] = ()) -> list[Collected]:
    """The collected updates of each active DAG that is not paused."""
    rows = connection.exec_driver_sql(
        """
        with recursive waiting (dag_id, uri) as (  -- one index probe for each pair, however many updates it collected
            (select dag_id, uri from asset_waiting where partition_key = '' order by dag_id, uri limit 1)
            union all
            select n.dag_id, n.uri
              from waiting w
             cross join lateral (
                   select dag_id, uri from asset_waiting a where partition_key = '' and (a.dag_id, a.uri) > (w.dag_id, w.uri)
                    order by dag_id, uri limit 1) n
        )
        select w.dag_id, d.version_id, array_agg(w.uri) as uris
          from waiting w
          join dag d on d.dag_id = w.dag_id and d.is_active
          join dag_schedule s on s.dag_id = w.dag_id and not s.is_paused
         where w.dag_id <> all(%s::text[])
         group by 1, 2 order by 1
        """,
        (list(without),),
    )
    return [Collected(row.dag_id, row.version_id, frozenset(row.uris)) for row in rows]


def lock(connection: Connection, dag_id: str) -> Collected | None:
    """Lock the DAG's dag_schedule row and read its collected updates again; None if it is locked elsewhere or paused."""
    version_id = connection.exec_driver_sql(
        """
        select d.version_id
          from dag_schedule s join dag d on d.dag_id = s.dag_id and d.is_active
         where s.dag_id = %s and not s.is_paused for no key update of s skip locked
        """,
        (dag_id,),
    ).scalar_one_or_none()
    if version_id is None:
        return None
    # A separate statement, so that it sees what was consumed under the previous lock.
    uris = connection.exec_driver_sql(
        "select distinct uri from asset_waiting where dag_id = %s and partition_key = ''", (dag_id,)
    ).scalars()
    return Collected(dag_id, version_id, frozenset(uris))


def consume(connection: Connection, dag_id: str, dag_run_id: int, partition: str = "") -> None:
    """Move all collected updates of the DAG, or of one of its partitions, to its new run."""
    connection.exec_driver_sql(
        """
        with consumed as (delete from asset_waiting where dag_id = %(dag_id)s and partition_key = %(partition)s returning event_id)
        insert into dag_run_asset_event (dag_run_id, event_id) select distinct %(run)s::bigint, event_id from consumed
        """,
        {"dag_id": dag_id, "run": dag_run_id, "partition": partition},
    )


def forget(connection: Connection, dag_id: str, *, but: Collection[str]) -> None:
    """Delete collected updates of assets that the schedule of the DAG does not have any more."""
    connection.exec_driver_sql("delete from asset_waiting where dag_id = %s and uri <> all(%s::text[])", (dag_id, list(but)))


def drop_waiting(connection: Connection, *, uri: str | None, dag_id: str | None, before: datetime | None) -> int:
    """Drop updates before a moment that DAGs wait to consume, and return how many. None stands for any."""
    dropped = connection.exec_driver_sql(
        """
        delete from asset_waiting w using asset_event e
         where e.id = w.event_id and w.uri = coalesce(%(uri)s, w.uri) and w.dag_id = coalesce(%(dag_id)s, w.dag_id)
           and (%(before)s::timestamptz is null or e.created_at < %(before)s)
        """,
        {"uri": uri, "dag_id": dag_id, "before": before},
    )
    return dropped.rowcount


def update(
    connection: Connection,
    uri: str,
    extra: Mapping[str, Any] | None = None,
    created_by: str = "cli",
    partition_key: str | None = None,
) -> dict[str, Any]:
    """Store an update by a person of the asset with this URI or name, and return the event. NotFoundError if it is unknown."""
    known = _all(connection)
    row = known.get(uri) or _with_name(known, uri)
    if row is None:
        near = difflib.get_close_matches(uri, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else "`paceline assets list` lists all."
        raise NotFoundError(f"No DAG uses the asset {uri!r}; {hint}")
    try:
        partition = None if partition_key is None else Partition(check_partition_key(partition_key), None)
        new = Update(uri=row["uri"], extra=extra or {}, created_by=created_by, partition=partition)
        store(connection, [new], {row["uri"]: row["name"]})
    except DataError as error:
        raise PacelineError(sqlstates.unstorable("extra", error)) from None
    event = connection.exec_driver_sql(
        "select id, uri, extra, created_by, created_at, partition_key from asset_event where uri = %s order by id desc limit 1",
        (row["uri"],),
    )
    return dict(event.mappings().one())


def assets(connection: Connection) -> list[dict[str, Any]]:
    """Every asset that an active DAG uses or that was ever updated, by URI: its updating tasks, waiting DAGs and last update."""
    return [row for _, row in sorted(_all(connection).items())]


def events_of_run(connection: Reader, dag_run_id: int) -> list[AssetEvent]:
    """The updates that triggered a run, oldest first."""
    return [event.as_authored() for event in connection.objects(_StoredEvent, OF_RUN, (dag_run_id,))]


def events_of_assets(connection: Reader, uris: Sequence[str]) -> list[AssetEvent]:
    """The newest updates of each of these assets, oldest first."""
    return [event.as_authored() for event in connection.objects(_StoredEvent, OF_ASSETS, (list(uris), MAX_EVENTS))]


def named(connection: Reader, name: str) -> asset.Asset:
    """The asset with this name. NotFoundError if no active DAG has it in its outlets or its schedule, and it was never updated."""
    uri = connection.value(NAMED, (name,) * 5)
    if uri is None:
        raise NotFoundError(f"No DAG uses an asset with the name {name!r}; `paceline assets list` lists all.")
    return asset.Asset(name=name, uri=uri)


def _all(connection: Connection) -> dict[str, dict[str, Any]]:
    stored = connection.exec_driver_sql(
        """
        select a.uri, a.name, e.created_at
          from asset a
          left join lateral (select created_at from asset_event where uri = a.uri order by id desc limit 1) e on true
        """
    )
    by_uri = {uri: _row(uri, name, updated_at) for uri, name, updated_at in stored}
    updating = connection.exec_driver_sql(
        """
        select d.dag_id, t->>'task_id' as task_id, uri, coalesce(v.data->'asset_names'->>uri, uri) as name
          from dag d
          join dag_version v on v.id = d.version_id
         cross join jsonb_array_elements(v.data->'tasks') t
         cross join jsonb_array_elements_text(t->'outlets') uri
         where d.is_active order by 1, 2
        """
    )
    for one in updating:
        row = by_uri.setdefault(one.uri, _row(one.uri, one.name, None))
        if one.name != one.uri:
            row["name"] = one.name
        row["updated_by"].append(f"{one.dag_id}.{one.task_id}")
    waiting = connection.exec_driver_sql(
        "select d.dag_id, v.data->'schedule'->'condition' from dag d join dag_version v on v.id = d.version_id"
        " where d.is_active and v.asset_uris is not null order by 1"
    )
    for dag_id, condition in waiting:
        for wanted in asset.from_spec(condition).assets():
            known = _with_name(by_uri, wanted.name) if isinstance(wanted, asset.AssetRef) else None
            row = known or by_uri.setdefault(wanted.uri, _row(wanted.uri, wanted.name, None))
            row["name"] = wanted.name
            if dag_id not in row["waited_for_by"]:
                row["waited_for_by"].append(dag_id)
    return by_uri


def _with_name(by_uri: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The asset with this name. One that has moved to another URI is that with the URI in use."""
    named = [row for row in by_uri.values() if row["name"] == name]
    return max(named, key=lambda row: bool(row["updated_by"] or row["waited_for_by"]), default=None)


def _row(uri: str, name: str, updated_at: datetime | None) -> dict[str, Any]:
    return {"uri": uri, "name": name, "updated_by": [], "waited_for_by": [], "updated_at": updated_at}


def _values(update: Update) -> dict[str, Any]:
    by = update.by
    return {
        "uri": update.uri,
        "extra": dict(update.extra),
        "dag_id": by and by.dag_id,
        "run_id": by and by.run_id,
        "task_id": by and by.task_id,
        "map_index": by and by.map_index,
        "created_by": update.created_by,
        "at": by and by.at.isoformat(),
        "partition_key": update.partition and update.partition.key,
        "partition_date": update.partition and update.partition.date and update.partition.date.isoformat(),
    }
