"""All events in the order of their time, in batches: each exactly once as long as one reader reads. Reading writes nothing.

An event can become visible after a later one, when its transaction ends. So a batch starts from the first moment at which a
transaction that is still open could have written one, and events of the last batch are left out by their place in the table. The
open transactions are read first, in a statement of their own.

Beside events, traces and lineage need how versions were parsed, work on Spark, DataFrames, and nominal times.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from paceline.states import RUN_FINISHED, STARTED
from scheduler.store.db import rows
from scheduler.store.db.clock import OPEN_TRANSACTIONS

#: Seconds: a transaction that is open for longer is not waited for; an older position is not continued; the longest batch.
LONGEST_S, OLDEST_S, BATCH_S = 60.0, 600.0, 30.0
#: One reader at a time; any number that nothing else uses for an advisory lock.
READER_LOCK = 0x7061_6365_6D65
NOW = f"select extract(epoch from statement_timestamp())::float8 as now, {OPEN_TRANSACTIONS} as open"
EVENTS = f"""
select e.ctid::text as place, extract(epoch from e.at)::float8 as at, e.dag_run_id, e.task_instance_id, e.try_number, e.from_state,
       e.to_state, e.actor, e.reason, extract(epoch from e.queued_at)::float8 as queued_at,
       extract(epoch from e.started_at)::float8 as started_at, e.worker,
       t.task_id, t.task_no, t.map_index, t.queue, extract(epoch from t.scheduled_at)::float8 as scheduled_at,
       r.dag_id, r.run_id, r.run_type, r.version_id, extract(epoch from r.run_after)::float8 as run_after,
       extract(epoch from r.queued_at)::float8 as run_queued_at, extract(epoch from r.started_at)::float8 as run_started_at,
       case when e.task_instance_id is null and e.to_state in {RUN_FINISHED.sql} then (
           select extract(epoch from min(f.started_at))::float8 from task_instance f where f.dag_run_id = e.dag_run_id)
       end as first_task_at
  from event e left join task_instance t on t.id = e.task_instance_id left join dag_run r on r.id = e.dag_run_id
 where e.at > to_timestamp(%s) and e.at <= to_timestamp(%s)
 order by e.at
"""
RUNNING = f"""
select t.id as task_instance_id, t.dag_run_id, t.try_number, t.task_id, t.task_no, t.map_index, t.queue, t.worker,
       r.dag_id, r.run_id, r.version_id, extract(epoch from t.scheduled_at)::float8 as scheduled_at,
       extract(epoch from t.queued_at)::float8 as queued_at, extract(epoch from t.started_at)::float8 as started_at
  from task_instance t join dag_run r on r.id = t.dag_run_id where t.state in {STARTED.sql}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A task instance that a worker has. Times are seconds since 1970, by the database's clock."""

    task_instance_id: int
    dag_run_id: int
    try_number: int
    task_id: str
    task_no: int
    map_index: int
    queue: str
    worker: str | None
    dag_id: str
    run_id: str
    version_id: int
    scheduled_at: float | None
    queued_at: float | None
    started_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of state. A run has no `task_instance_id`. What was deleted since has no `dag_id` or `task_id`."""

    place: str
    at: float
    dag_run_id: int
    task_instance_id: int | None
    try_number: int | None
    from_state: str | None
    to_state: str | None
    actor: str
    reason: str | None
    #: Of the dispatch that this event ends.
    queued_at: float | None
    started_at: float | None
    worker: str | None
    task_id: str | None
    task_no: int | None
    map_index: int | None
    queue: str | None
    #: Of the task instance now, which may be in its next try.
    scheduled_at: float | None
    dag_id: str | None
    run_id: str | None
    run_type: str | None
    version_id: int | None
    run_after: float | None
    run_queued_at: float | None
    run_started_at: float | None
    #: Of the end of a run.
    first_task_at: float | None


@dataclass(slots=True)
class EventFeed:
    """The position of a reader. `since` None starts at the present."""

    since: float | None = None
    #: The present, and up to when the last batch read.
    now: float = 0.0
    until: float = 0.0
    #: By open transaction: the moment of the last batch before it was seen.
    _open: dict[str, float] = field(default_factory=dict)
    _seen: set[tuple[str, float]] = field(default_factory=set)

    def read(self, connection: Connection) -> list[Event]:
        """The next events, of BATCH_S at most; more are there as long as `is_behind`."""
        self.now, open_ = connection.exec_driver_sql(NOW).one()
        if self.since is None or self.since < self.now - OLDEST_S:
            self.since = self.until = self.now
            return []
        until = min(self.now, max(self.since, self.until) + BATCH_S)
        found = rows.of_result(Event, connection.exec_driver_sql(EVENTS, (self.since, until)))
        new = [event for event in found if (event.place, event.at) not in self._seen]
        self._move_on(until, open_, found)
        return new

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read at once."""
        return self.until < self.now

    def _move_on(self, until: float, open_: Collection[str], found: list[Event]) -> None:
        self._open = {one: self._open.get(one, self.until) for one in open_}
        self.since = max(min([until, *self._open.values()]), until - LONGEST_S)
        self.until = until
        self._seen = {(event.place, event.at) for event in found if event.at > self.since}


def running(connection: Connection) -> list[Started]:
    """The task instances that workers have now."""
    return rows.of_result(Started, connection.exec_driver_sql(RUNNING))


def become_reader(connection: Connection) -> bool:
    """Whether this connection may read for the installation, until it closes."""
    return bool(connection.exec_driver_sql("select pg_try_advisory_lock(%s)", (READER_LOCK,)).scalar_one())


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """When a version was stored, and how long its file took to parse, in seconds; None if the file is gone."""

    id: int
    number: int
    stored_at: float
    duration_s: float | None
    file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWork:
    """The progress of the last try of a task, and the application that it submitted, if any. Times are seconds since 1970."""

    task_instance_id: int
    progress: dict[str, Any] | None
    application_id: str | None
    master: str | None
    state: str | None
    submitted_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """The nominal times of a run, as ISO 8601."""

    id: int
    nominal_from: str | None
    nominal_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """An XCom with a reference to a DataFrame."""

    task_instance_id: int
    dag_run_id: int
    task_id: str
    key: str
    value: Any


def parsed(connection: Connection, version_id: int) -> Parsed | None:
    """How a version came to be."""
    found = connection.exec_driver_sql(
        """
        select v.id, v.number, extract(epoch from v.created_at)::float8 as stored_at, f.duration_s, f.path as file
          from dag_version v left join dag d on d.dag_id = v.dag_id left join dag_file f on f.path = d.file and d.bundle is null
         where v.id = %s
        """,
        (version_id,),
    )
    return rows.first(Parsed, found)


def spark_work(connection: Connection, tries: Collection[tuple[int, int]]) -> list[SparkWork]:
    """The work on Spark of these tries (task instance and number)."""
    found = connection.exec_driver_sql(
        """
        select n.id as task_instance_id, p.progress, j.application_id, j.master, j.state,
               extract(epoch from j.submitted_at)::float8 as submitted_at, extract(epoch from j.ended_at)::float8 as ended_at
          from unnest(%s::bigint[], %s::int[]) n (id, try_number)
          left join task_progress p on p.task_instance_id = n.id and p.try_number = n.try_number
          left join external_job j on j.task_instance_id = n.id and j.try_number = n.try_number
         where p.task_instance_id is not null or j.id is not null
        """,
        ([ti for ti, _ in tries], [number for _, number in tries]),
    )
    return rows.of_result(SparkWork, found)


def run_times(connection: Connection, run_ids: Collection[int]) -> dict[int, RunTimes]:
    """The nominal times of these runs: those of the data interval, or the logical date."""
    found = connection.exec_driver_sql(
        """
        select id, to_char(coalesce(data_interval_start, logical_date) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                   as nominal_from,
               to_char(data_interval_end at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as nominal_to
          from dag_run where id = any(%s)
        """,
        (list(run_ids),),
    )
    return {one.id: one for one in rows.of_result(RunTimes, found)}


def frames(connection: Connection, run_id: int, task_ids: Collection[str]) -> list[Returned]:
    """The references to DataFrames that these tasks of a run have returned."""
    found = connection.exec_driver_sql(
        """
        select t.id as task_instance_id, t.dag_run_id, t.task_id, x.key, x.value
          from task_instance t join xcom x on x.task_instance_id = t.id
         where t.dag_run_id = %s and t.task_id = any(%s) and x.value::text like '%%"__dataframe__"%%'
         order by t.id, x.key limit 200
        """,
        (run_id, list(task_ids)),
    )
    return rows.of_result(Returned, found)
