"""What the pictures of a run and of a DAG show: timeline, critical path, calendar, and the applications of Spark."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.exceptions import UsageError
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags import schedules
from scheduler.store.db import rows

Row = dict[str, Any]
#: A mapped task with more instances has one bar for all of them.
MOST_BARS = 100
#: Earlier tries of an instance that have bars: the newest ones.
MOST_TRIES = 20
BARS = """
with instance as (
    select t.id, t.task_no, t.task_id, t.map_index, t.state, t.try_number, t.scheduled_at, t.queued_at, t.started_at, t.ended_at,
           t.worker, count(*) over (partition by t.task_no) as instances
      from task_instance t where t.dag_run_id = %(run)s
)
select task_no, task_id, map_index, state, try_number, scheduled_at, queued_at, started_at, ended_at, worker, 1 as instances
  from instance where instances <= %(most)s
union all
select i.task_no, i.task_id, i.map_index, h.state, h.try_number, h.scheduled_at, h.queued_at, h.started_at, h.ended_at, h.worker, 1
  from instance i cross join lateral (
       select * from task_try h where h.task_instance_id = i.id order by h.try_number desc, h.ended_at desc limit %(tries)s) h
 where i.instances <= %(most)s
union all
select task_no, task_id, -1, case when count(*) = count(ended_at) then max(state) end, max(try_number), min(scheduled_at),
       min(queued_at), min(started_at), case when count(*) = count(ended_at) then max(ended_at) end, null, count(*)
  from instance where instances > %(most)s group by 1, 2
 order by task_no, map_index, try_number
"""
#: Planned runs are those of the next days, and the first of many.
PLANNED_DAYS, MOST_PLANNED = 7, 400


def bars(connection: Connection, dag_run_id: int) -> list[Row]:
    """The newest tries of the task instances of a run, in topological order."""
    return rows.dicts(connection.exec_driver_sql(BARS, {"run": dag_run_id, "most": MOST_BARS, "tries": MOST_TRIES}))


def first_failure(connection: Connection, dag_run_id: int) -> Row | None:
    """The task instance of a run that failed first, with the number of all that failed; None if none did."""
    found = connection.exec_driver_sql(
        """
        select r.dag_id, r.run_id, t.task_id, t.map_index, t.state, t.try_number, t.ended_at, t.reason, count(*) over () as failed
          from task_instance t join dag_run r on r.id = t.dag_run_id
         where t.dag_run_id = %s and t.state = 'failed' order by t.ended_at, t.id limit 1
        """,
        (dag_run_id,),
    )
    return next(iter(rows.dicts(found)), None)


def critical_path(dag: SerializedDag, bars: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tasks that decided how long the run took, the first one first: each is the upstream task that ended last."""
    ended: dict[str, datetime] = {}
    for bar in bars:
        at = bar["ended_at"] or bar["started_at"]
        if at is not None and bar["task_id"] in dag.number:
            ended[bar["task_id"]] = max(at, ended.get(bar["task_id"], at))
    path: list[str] = []
    near = list(ended)
    while near:
        last = max(near, key=lambda name: (ended[name], dag.number[name]))
        path.append(last)
        near = [name for name in dag.tasks[dag.number[last]].upstream if name in ended]
    return path[::-1]


def days_and_hours(connection: Connection, dag_id: str, *, days: int, zone: str) -> tuple[list[Row], list[Row]]:
    """The number of runs by day and state, and by hour of the day and state: of the last `days` days. UsageError."""
    zone_of(zone)
    try:
        found = connection.exec_driver_sql(
            """
            select day, hour, state, count(*) as count
              from (select (l.at)::date as day, extract(hour from l.at)::int as hour, r.state from dag_run r
                     cross join lateral (select coalesce(r.logical_date, r.run_after) at time zone %(zone)s as at) l
                     where r.dag_id = %(dag_id)s and r.run_after >= statement_timestamp() - make_interval(days => %(days)s)) r
             group by grouping sets ((day, state), (hour, state)) order by 1, 2
            """,
            {"dag_id": dag_id, "days": days, "zone": zone},
        )
    except DataError as error:
        raise _no_zone(zone) from error
    counted = rows.dicts(found)
    return [row for row in counted if row["day"] is not None], [row for row in counted if row["hour"] is not None]


def planned(connection: Connection, dag_id: str, *, zone: str) -> tuple[list[Row], bool]:
    """The number of planned runs of each day, and whether there are too many to count. UsageError, NotFoundError."""
    here = zone_of(zone)
    due = schedules.upcoming(connection, dag_id, count=MOST_PLANNED, within=timedelta(days=PLANNED_DAYS))
    by_day = Counter(run.run_after.astimezone(here).date() for run in due)
    return [{"day": day, "count": count} for day, count in sorted(by_day.items())], len(due) == MOST_PLANNED


def zone_of(name: str) -> ZoneInfo:
    """The time zone with this name. UsageError."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise _no_zone(name) from error


def _no_zone(name: str) -> UsageError:
    return UsageError(f"There is no time zone {name[:100]!r}: give a name such as Europe/Berlin.")


def applications(connection: Connection, ti_id: int) -> Row:
    """`progress` of the newest try with the time of the report, and `applications`, the oldest first."""
    progress = connection.exec_driver_sql(
        "select p.progress, p.seen_at from task_progress p join task_instance t on t.id = p.task_instance_id"
        " where t.id = %s and p.try_number = t.try_number",
        (ti_id,),
    )
    found = connection.exec_driver_sql(
        """
        select try_number, kind, deploy_mode, master, application_id, driver_id, ui_url, state, detail, submitted_at, ended_at
          from external_job where task_instance_id = %s order by id
        """,
        (ti_id,),
    )
    report = rows.first_dict(progress) or {"progress": None, "seen_at": None}
    return report | {"applications": rows.dicts(found)}
