"""The schedules of DAGs: the planned next run of each, which the scheduler stores beside the data of the parser."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from paceline.authoring.timetables.base import RunTimes
from paceline.exceptions import no_dag
from scheduler.serialized.dag import SerializedDag, next_timetable
from scheduler.store.db import clock, prepared
from scheduler.store.queueing.limits import OPEN_RUNS

#: Whether a run may be due before the next check, or a DAG has a new version, see store/upkeep/pending_work.
PENDING = """
    exists (select from dag_schedule where not is_paused and next_run_after <= clock_timestamp() + make_interval(secs => $1))
    or exists (select from dag_schedule s join dag d on d.dag_id = s.dag_id
                where not s.is_paused and d.is_active and s.planned_version_id is distinct from d.version_id)
"""


#: The schedule made the run `{0}`. A backfill that reprocesses it changes its type, but not its ID.
MADE_BY_SCHEDULE = "({0}.run_type = 'scheduled' or {0}.run_type = 'backfill' and starts_with({0}.run_id, 'scheduled__'))"
#: Locks the row of one DAG, under which its runs are counted, and notes for this transaction that it is held. If another
#: transaction holds it, or if the DAG is paused, none is.
LOCK_UNPAUSED = prepared.of(
    "lock_unpaused",
    {"dag_id": "text"},
    """
    with held as (select dag_id from dag_schedule where dag_id = %(dag_id)s and not is_paused for no key update skip locked)
    select set_config('paceline.held_dag', coalesce((select dag_id from held), ''), true)
    """,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A DAG whose next run is due, or whose plan is older than its newest version. This process has its row locked."""

    dag_id: str
    version_id: int
    planned_version_id: int | None
    next: RunTimes | None
    #: How many more open runs max_active_runs allows. Runs of backfills have a limit of their own and do not count.
    free_runs: int


def due(connection: Connection, now: datetime, *, limit: int, spread: str, without: Sequence[str] = ()) -> list[str]:
    """The DAGs to plan, longest due first, without those that have reached max_active_runs.

    `spread` differs between schedulers, so that each gets DAGs that became due together in a different order.
    """
    rows = connection.exec_driver_sql(
        f"""
        select s.dag_id
          from dag_schedule s join dag d on d.dag_id = s.dag_id and d.is_active join dag_version v on v.id = d.version_id
         where not s.is_paused and s.dag_id <> all(%(without)s::text[])
           and (s.planned_version_id is distinct from d.version_id
                or (s.next_run_after <= %(now)s and v.max_active_runs > {OPEN_RUNS}))
         order by s.next_run_after nulls first, md5(s.dag_id || %(spread)s)
         limit %(limit)s
        """,
        {"now": now, "limit": limit, "spread": spread, "without": list(without)},
    )
    return list(rows.scalars())


def next_due(connection: Connection, now: datetime) -> datetime | None:
    """When the next run after `now` is due."""
    return connection.exec_driver_sql(
        "select min(next_run_after) from dag_schedule where not is_paused and next_run_after > %s", (now,)
    ).scalar()


def lock(connection: Connection, dag_id: str) -> Due | None:
    """Lock the row of one DAG and read it again; None if it is locked elsewhere, paused, or not active any more.

    Two statements: a single one would count as of its start, without the runs that were committed under the previous lock.
    """
    if prepared.execute(connection, LOCK_UNPAUSED, {"dag_id": dag_id}).scalar_one() != dag_id:
        return None
    row = connection.exec_driver_sql(
        f"""
        select s.planned_version_id, s.next_logical_date, s.next_interval_start, s.next_interval_end, s.next_run_after,
               d.version_id, v.max_active_runs - {OPEN_RUNS} as free_runs
          from dag_schedule s join dag d on d.dag_id = s.dag_id and d.is_active join dag_version v on v.id = d.version_id
         where s.dag_id = %s
        """,
        (dag_id,),
    ).first()
    if row is None:
        return None
    planned, next_ = row.planned_version_id, _planned(row)
    return Due(dag_id=dag_id, version_id=row.version_id, planned_version_id=planned, next=next_, free_runs=row.free_runs)


def newest_scheduled(connection: Connection, dag_id: str) -> tuple[datetime, datetime | None] | None:
    """The logical date and the end of the data interval of the newest scheduled run. Other run types do not move the schedule."""
    row = connection.exec_driver_sql(
        "select r.logical_date, r.data_interval_end from dag_run r"
        f" where r.dag_id = %s and {MADE_BY_SCHEDULE.format('r')} and r.logical_date is not null"
        " order by r.logical_date desc limit 1",
        (dag_id,),
    ).first()
    return None if row is None else (row.logical_date, row.data_interval_end)


def plan(connection: Connection, dag_id: str, version_id: int, times: RunTimes | None) -> None:
    """Store the next run (None: no run), as computed from this version."""
    connection.exec_driver_sql(
        """
        update dag_schedule
           set planned_version_id = %(version_id)s, next_logical_date = %(logical_date)s, next_interval_start = %(start)s,
               next_interval_end = %(end)s, next_run_after = %(run_after)s
         where dag_id = %(dag_id)s
        """,
        {
            "dag_id": dag_id,
            "version_id": version_id,
            "logical_date": times and times.logical_date,
            "start": times and times.data_interval_start,
            "end": times and times.data_interval_end,
            "run_after": times and times.run_after,
        },
    )


def upcoming(connection: Connection, dag_id: str, *, count: int, within: timedelta | None = None) -> list[RunTimes]:
    """The next runs of the schedule of a DAG, the first one as it is planned: `count` of them, or fewer if only those are due
    `within` this time. NotFoundError.
    """
    row = connection.exec_driver_sql(
        """
        select v.data, s.planned_version_id = d.version_id as is_planned,
               s.next_logical_date, s.next_interval_start, s.next_interval_end, s.next_run_after
          from dag d join dag_version v on v.id = d.version_id left join dag_schedule s on s.dag_id = d.dag_id
         where d.dag_id = %s and d.is_active
        """,
        (dag_id,),
    ).first()
    if row is None:
        raise no_dag(dag_id)
    dag = SerializedDag.from_json(row.data)
    now = clock.now(connection)
    if row.is_planned:
        following = _planned(row)
    else:
        last, covered = newest_scheduled(connection, dag_id) or (None, None)
        following = next_run(dag, last, now, covered=covered)
    until = None if within is None else now + within
    due = itertools.takewhile(lambda run: until is None or run.run_after < until, from_run(dag, following, now))
    return list(itertools.islice(due, count))


def from_run(dag: SerializedDag, first: RunTimes | None, now: datetime) -> Iterator[RunTimes]:
    """The runs of a schedule from `first` on. Those after the first are predicted, as if each were created in time."""
    following = first
    while following is not None:
        yield following
        if next_timetable(dag).is_continuous:
            return
        then = max(now, following.run_after)
        following = next_run(dag, following.logical_date, then, covered=following.data_interval_end)


def next_run(dag: SerializedDag, last: datetime | None, now: datetime, *, covered: datetime | None = None) -> RunTimes | None:
    """The run after `last` by the timetable of the DAG; its logical date is always later than `last`."""
    if dag.allowed_run_types and "scheduled" not in dag.allowed_run_types:
        return None
    return next_timetable(dag).next_run(last=last, covered=covered, start=dag.start, end=dag.end, catchup=dag.catchup, now=now)


def _planned(row: Row[Any]) -> RunTimes | None:
    """The run that a row of dag_schedule plans next."""
    if row.next_run_after is None:
        return None
    return RunTimes(row.next_logical_date, row.next_interval_start, row.next_interval_end, row.next_run_after)
