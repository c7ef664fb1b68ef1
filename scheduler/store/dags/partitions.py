"""Updates of partitions: collected for the runs that each is for, by the mappers in the schedules of DAGs."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from paceline.authoring import timetable
from paceline.authoring.timetables.partitioned import WhenPartitioned

log = logging.getLogger("paceline.scheduler")
#: Partitions that one pass of a scheduler examines, the oldest update first.
MOST_PARTITIONS = 500


@dataclass(frozen=True, slots=True)
class Pending:
    """A partition of a DAG for which updates were collected: their keys by URI, and the date that they agree on."""

    dag_id: str
    version_id: int
    key: str
    arrived: Mapping[str, frozenset[str]]
    date: datetime | None


def collect(connection: Connection, events: Sequence[Any]) -> None:
    """Collect stored updates with a partition key, given as rows with id, uri and partition_key, for schedules of partitions.

    An update whose key a mapper does not know, or that is for too many runs, is logged and creates no run of that DAG.
    """
    if not events:
        return
    waiting = [
        (row.dag_id, key, event.uri, event.id)
        for row in _schedules(connection, {event.uri for event in events})
        for event in events
        if event.uri in row.uris
        for key in _keys(row.dag_id, row.table, event.uri, event.partition_key)
    ]
    if waiting:
        connection.exec_driver_sql(
            "insert into asset_waiting (dag_id, partition_key, uri, event_id)"
            " select * from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) on conflict do nothing",
            tuple(list(column) for column in zip(*waiting, strict=True)),
        )


def pending(connection: Connection, *, without: Collection[str] = ()) -> list[Pending]:
    """The partitions with collected updates of each active DAG that is not paused, those with the oldest update first."""
    rows = connection.exec_driver_sql(
        """
        select w.dag_id, w.partition_key from asset_waiting w
          join dag d on d.dag_id = w.dag_id and d.is_active
          join dag_schedule s on s.dag_id = w.dag_id and not s.is_paused
         where w.partition_key <> '' and w.dag_id <> all(%s::text[])
         group by 1, 2 order by min(w.event_id) limit %s
        """,
        (list(without), MOST_PARTITIONS),
    ).all()
    return [partition for dag_id, key in rows if (partition := read(connection, dag_id, key)) is not None]


def read(connection: Connection, dag_id: str, key: str) -> Pending | None:
    """The collected updates of one partition; None if there are none."""
    rows = connection.exec_driver_sql(
        """
        select d.version_id, w.uri, array_agg(distinct e.partition_key) as keys,
               array_agg(distinct e.partition_date) filter (where e.partition_date is not null) as dates
          from asset_waiting w join asset_event e on e.id = w.event_id join dag d on d.dag_id = w.dag_id
         where w.dag_id = %s and w.partition_key = %s group by 1, 2
        """,
        (dag_id, key),
    ).all()
    if not rows:
        return None
    dates = {date for row in rows for date in row.dates or ()}
    arrived = {row.uri: frozenset(row.keys) for row in rows}
    return Pending(dag_id, rows[0].version_id, key, arrived, dates.pop() if len(dates) == 1 else None)


def forget(connection: Connection, dag_id: str, key: str) -> None:
    """Delete the collected updates of a partition."""
    connection.exec_driver_sql("delete from asset_waiting where dag_id = %s and partition_key = %s", (dag_id, key))


@dataclass(frozen=True, slots=True)
class _Schedule:
    dag_id: str
    table: WhenPartitioned
    uris: frozenset[str]


def _schedules(connection: Connection, uris: Collection[str]) -> list[_Schedule]:
    """The schedules of partitions that have one of these assets."""
    rows = connection.exec_driver_sql(
        """
        select d.dag_id, v.data->'schedule' as schedule
          from dag d join dag_version v on v.id = d.version_id
         where d.is_active and v.data->'schedule'->>'kind' = 'partitioned_assets' and v.asset_uris ?| %s::text[]
         order by d.dag_id
        """,
        (list(uris),),
    )
    tables = [(row.dag_id, timetable.from_spec(row.schedule)) for row in rows]
    return [
        _Schedule(dag_id, table, frozenset(table.assets.uris)) for dag_id, table in tables if isinstance(table, WhenPartitioned)
    ]


def _keys(dag_id: str, table: WhenPartitioned, uri: str, key: str) -> list[str]:
    """The partitions of the DAG that an update with this key is for."""
    try:
        return table.mapper(uri).keys(key)
    except (ValueError, OverflowError) as error:
        log.error("The update of the partition %r of asset %r creates no run of DAG %s: %s.", key, uri, dag_id, error)
        return []
