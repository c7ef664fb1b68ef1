"""DAG runs: creates them with their task instances, starts, examines and closes them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection

from paceline.authoring.timetables.base import Partition
from paceline.states import OPEN, RunState
from scheduler.deciding.evaluate import first_decisions
from scheduler.messaging.message import Message
from scheduler.messaging.wakeups import QUEUE
from scheduler.serialized.dag import SerializedDag, next_timetable
from scheduler.store.dags import schedules
from scheduler.store.dags.dags import AFTER, ORDER
from scheduler.store.db import prepared
from scheduler.store.db.database import step
from scheduler.store.moves import fit
from scheduler.store.moves.decide import decide
from scheduler.store.moves.first import Limits, schedule_first
from scheduler.store.queueing.limits import RUNNING_RUNS, RUNNING_RUNS_OF_BACKFILL
from scheduler.store.runs import deadlines, integrity

#: Whether a run is over its dagrun_timeout, and whether one runs, see store/upkeep/pending_work.
OVER_ITS_TIMEOUT = "state = 'running' and timeout_at < clock_timestamp() and requested_state is null"
PENDING_TIMEOUTS = f"exists (select from dag_run where {OVER_ITS_TIMEOUT})"
PENDING_SWEEP = "exists (select from dag_run where state = 'running')"

#: The DAGs and backfills with queued runs, with their dag_schedule rows locked; and a row that is not held, if there are such DAGs
#: whose rows other transactions hold. It skips from DAG to DAG in an index, so that a
#: DAG with many queued runs costs no more than one with a single queued run.
STARTABLE = """
    with recursive dags (dag_id) as (
        (select dag_id from dag_run where state = 'queued' and backfill_id is null order by dag_id limit 1)
        union all
        select (select r.dag_id from dag_run r
                 where r.state = 'queued' and r.backfill_id is null and r.dag_id > d.dag_id order by r.dag_id limit 1)
          from dags d where d.dag_id is not null
    ), backfills (id) as (
        (select backfill_id from dag_run where state = 'queued' and backfill_id is not null order by backfill_id limit 1)
        union all
        select (select r.backfill_id from dag_run r
                 where r.state = 'queued' and r.backfill_id > b.id order by r.backfill_id limit 1)
          from backfills b where b.id is not null
    ), startable (dag_id, backfill_id) as (
        select dag_id, null::bigint from dags where dag_id is not null
        union all
        select b.dag_id, b.id from backfills join backfill b using (id) where not b.is_paused
    ), held as (
        select s.dag_id from dag_schedule s
         where not s.is_paused and s.dag_id in (select dag_id from startable)
         order by s.dag_id for no key update skip locked
    )
    select dag_id, backfill_id, true as is_held from held join startable using (dag_id)
    union all
    select null, null, false where exists (select from startable join dag_schedule s using (dag_id)
                                            where not s.is_paused and s.dag_id not in (select dag_id from held))
"""
#: Runs started in one transaction. Other schedulers start the next ones while these are examined.
MOST_STARTS = 50
#: Starts runs. A run that another process has locked, to clear or end it, is left to the next pass.
START = f"""
    with next (id) as (
        select q.id
          from unnest(%(dags)s::text[]) d (dag_id)
          join dag on dag.dag_id = d.dag_id
          join dag_version v on v.id = dag.version_id
         cross join lateral (
               select id from dag_run
                where dag_id = d.dag_id and state = 'queued' and backfill_id is null and run_after <= clock_timestamp()
                order by run_after, id
                limit greatest(0, v.max_active_runs - {RUNNING_RUNS})) q
        union all
        select q.id
          from unnest(%(backfills)s::bigint[]) n (id)
          join backfill b on b.id = n.id and not b.is_paused
         cross join lateral (
               select id from dag_run
                where backfill_id = b.id and state = 'queued'
                order by backfill_ordinal, id
                limit greatest(0, b.max_active_runs - {RUNNING_RUNS_OF_BACKFILL})) q
    ), held as (
        select r.id, (v.data->>'dagrun_timeout_s')::float as timeout_s
          from next join dag_run r on r.id = next.id and r.state = 'queued' join dag_version v on v.id = r.version_id
         order by r.id limit %(most)s for no key update of r skip locked
    )
    update dag_run r
       set state = 'running', started_at = clock_timestamp(), scheduling_error = null,
           -- "least" ignores a null: a run without a timeout would get one of 1e9 seconds.
           timeout_at = case when held.timeout_s is not null
                             then clock_timestamp() + make_interval(secs => least(held.timeout_s, 1e9)) end
      from held where r.id = held.id and r.state = 'queued'
    returning r.id
"""
#: Whether a new run of the DAG `d`, whose row this transaction holds, begins: it does not overtake a queued run of its DAG. The
#: casts: a value may be null.
BEGINS = f"""
    (select %(may_begin)s and current_setting('paceline.held_dag', true) = d.dag_id
            and %(run_after)s::timestamptz <= clock_timestamp() and %(max_active_runs)s > {RUNNING_RUNS}
            and not exists (select from dag_run q where q.dag_id = d.dag_id and q.state = 'queued' and q.backfill_id is null
                               and q.run_after <= clock_timestamp())
       from (select %(dag_id)s::text as dag_id) d)
"""
INSERT = prepared.of(
    "insert_dag_run",
    {
        "dag_id": "text", "run_id": "text", "run_type": "text", "version_id": "bigint", "logical_date": "timestamptz",
        "data_interval_start": "timestamptz", "data_interval_end": "timestamptz", "run_after": "timestamptz", "conf": "jsonb",
        "triggered_by": "text", "notify": "text[]", "partition_key": "text", "partition_date": "timestamptz",
        "timeout_s": "float8", "may_begin": "boolean", "max_active_runs": "int",
    },
    f"""
    insert into dag_run (dag_id, run_id, run_type, state, version_id, logical_date, data_interval_start, data_interval_end,
                         run_after, conf, triggered_by, notify, partition_key, partition_date, started_at, timeout_at)
    select %(dag_id)s, %(run_id)s, %(run_type)s, case when begins then 'running' else 'queued' end, %(version_id)s,
           %(logical_date)s, %(data_interval_start)s, %(data_interval_end)s, %(run_after)s, %(conf)s, %(triggered_by)s,
           %(notify)s, %(partition_key)s, %(partition_date)s, case when begins then clock_timestamp() end,
           case when begins then clock_timestamp() + make_interval(secs => %(timeout_s)s) end
      from (select {BEGINS} as begins) decided
    on conflict do nothing returning id, state = 'running' as begins
    """,
)  # fmt: skip
VERSIONS_OF = prepared.of(
    "versions_of", {"ids": "bigint[]"}, "select id, version_id from dag_run where id = any(%(ids)s) and state = 'running'"
)
LOCK = prepared.of(
    "lock_runs",
    {"ids": "bigint[]"},
    """
    select r.id, r.version_id, coalesce(d.version_id, r.version_id) as newest_id, r.scheduling_error is not null as has_error,
           r.requested_state
      from dag_run r left join dag d on d.dag_id = r.dag_id
     where r.id = any(%(ids)s) and r.state = 'running' order by r.id for no key update of r skip locked
    """,
)
CLOSE = prepared.of(
    "close_runs",
    {"ids": "bigint[]", "states": "text[]"},
    """
    update dag_run r set state = n.state, ended_at = clock_timestamp(), requested_state = null
      from unnest(%(ids)s, %(states)s) n (id, state) where r.id = n.id and r.state = 'running'
    """,
)


@dataclass(frozen=True, slots=True)
class CreatedRun:
    """A new run: its key in the database and its run ID, and what is left to do after the commit."""

    id: int
    run_id: str
    #: Whether it runs, and its first tasks are decided.
    has_begun: bool = False
    #: The message of its first task, to be sent.
    messages: Sequence[Message] = ()
    #: Whether tasks wait for the queue service.
    waits: bool = False

    @property
    def tokens(self) -> list[str]:
        """The wakeups to send after the commit."""
        return [*([] if self.has_begun else [f"run:{self.id}"]), *([QUEUE] if self.waits else [])]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Lets a run begin in the transaction that creates it. That takes the right to lock the dag_schedule row of its DAG.

    With `limits`, its first task may be queued. That takes the right to lock a pool.
    """

    limits: Limits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """The data of a run to create: its date, type and origin."""

    dag_id: str
    run_id: str
    run_type: str
    version_id: int
    logical_date: datetime | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    run_after: datetime
    conf: Mapping[str, Any] = field(default_factory=dict)
    triggered_by: str
    #: That of a scheduled run or of a backfill follows from its date.
    partition: Partition | None = None


def create(
    connection: Connection, dag: SerializedDag, new: NewRun, *, default_queue: str, beginning: Beginning | None = None
) -> CreatedRun | None:
    """Insert a run with all its task instances; None if there is a run with that ID or logical date already.

    With `beginning`, it begins at once if it is due, its DAG is not paused, no other transaction counts the runs of that,
    max_active_runs allows it, no other run waits to start, and it can be decided quickly. Otherwise a scheduler starts it.
    """
    is_backfill = new.run_type == "backfill"
    task_nos = integrity.wanted(dag, new.logical_date, is_backfill=is_backfill)
    first = [] if beginning is None else first_decisions(dag, task_nos)
    partition = new.partition
    if new.run_type in {"scheduled", "backfill"} and new.logical_date is not None:
        partition = next_timetable(dag).partition(new.logical_date)
    row = prepared.execute(
        connection,
        INSERT,
        {name: getattr(new, name) for name in NewRun.__slots__}
        | {"conf": psycopg2.extras.Json(new.conf), "notify": list(dag.notify) or None}
        | {"partition_key": partition and partition.key, "partition_date": partition and partition.date}
        | {"timeout_s": None if dag.dagrun_timeout_s is None else min(dag.dagrun_timeout_s, 1e9)}
        | {"may_begin": bool(first), "max_active_runs": dag.max_active_runs},
        after=(schedules.LOCK_UNPAUSED,) if first else (),
    ).first()
    if row is None:
        return None
    deadlines.plan(connection, dag, row.id)
    instances = fit.values(dag, row.id, task_nos, is_backfill=is_backfill, default_queue=default_queue)
    if row.begins and beginning is not None and beginning.limits is not None:
        messages, waits = schedule_first(connection, row.id, first, limits=beginning.limits, instances=instances)
        return CreatedRun(row.id, new.run_id, True, messages, waits)
    prepared.execute(connection, fit.INSERT, instances)
    if row.begins:
        decide(connection, {row.id: first})
    return CreatedRun(row.id, new.run_id, has_begun=row.begins, waits=row.begins)


@dataclass(frozen=True, slots=True)
class Started:
    """The IDs of the runs that start, and whether another transaction held the row of a DAG with queued runs."""

    ids: list[int]
    held_elsewhere: bool


@step("start", lambda started: started.ids)
def start_queued(connection: Connection) -> Started:
    """queued -> running, oldest first, within max_active_runs of each DAG and backfill.

    The dag_schedule row of the DAG is locked, so that two processes never count the runs of a DAG at the same time.
    """
    found = connection.exec_driver_sql(STARTABLE).all()
    rows = [row for row in found if row.is_held]
    held_elsewhere = len(rows) < len(found)
    if not rows:
        return Started([], held_elsewhere)
    started = connection.exec_driver_sql(
        START,
        {
            "dags": sorted({row.dag_id for row in rows if row.backfill_id is None}),
            "backfills": sorted(row.backfill_id for row in rows if row.backfill_id),
            "most": MOST_STARTS,
        },
    )
    return Started(sorted(started.scalars()), held_elsewhere)


def to_examine(connection: Connection, *, limit: int, without: Collection[int] = ()) -> list[int]:
    """Up to `limit` running runs with nothing open, plus up to `limit` of any kind, least recently examined first.

    Excludes the runs `without`.

    Runs that wait for earlier runs have nothing open either, and must not displace the others.
    """
    rows = connection.exec_driver_sql(
        f"""
        (select r.id from dag_run r
          where r.state = 'running' and r.id <> all(%(without)s)
            and not exists (select 1 from task_instance t where t.dag_run_id = r.id and t.state in {OPEN.sql})
          order by r.examined_at nulls first, r.id limit %(limit)s)
        union
        (select r.id from dag_run r where r.state = 'running' and r.id <> all(%(without)s)
          order by r.examined_at nulls first, r.id limit %(limit)s)
        """,
        {"without": list(without), "limit": limit},
    )
    return list(rows.scalars())


def touched(connection: Connection, since: datetime | None) -> tuple[datetime, list[int]]:
    """Running runs in which a task instance ended after `since`, and later runs of their DAGs that depend on the past; without
    `since` all running runs. Returns the time of this query too.
    """
    if since is None:
        rows = connection.exec_driver_sql("select statement_timestamp(), array(select id from dag_run where state = 'running')")
    else:
        rows = connection.exec_driver_sql(
            f"""
            with touched as materialized (
                select distinct dag_run_id as id from task_instance where ended_at > %(since)s
            ), dependent as materialized (  -- By DAG: a pair of each of a thousand runs with each other one would take long.
                select r.dag_id, min({ORDER.format("r")}) as since
                  from touched join dag_run r using (id) join dag_version v on v.id = r.version_id and v.depends_on_past group by 1
            ), following as (
                select n.id from dependent d
                  join dag_run n on n.dag_id = d.dag_id and n.state = 'running' and {ORDER.format("n")} >= d.since
            )
            select statement_timestamp(), array(
                select id from touched join dag_run r using (id) where r.state = 'running' union select id from following)
            """,
            {"since": since},
        )
    at, ids = rows.one()
    return at, sorted(ids)


@dataclass(frozen=True, slots=True)
class LockedRun:
    """A running run that this transaction has locked: its version, the newest version of its DAG, and whether the last
    examination failed. `requested_state` is set if only its teardowns are left: it ends with this state.
    """

    version_id: int
    newest_id: int
    has_error: bool
    requested_state: RunState | None


def versions_of(connection: Connection, ids: Collection[int]) -> dict[int, int]:
    """The versions of running runs, by run."""
    return {row.id: row.version_id for row in prepared.execute(connection, VERSIONS_OF, {"ids": list(ids)})}


def lock(connection: Connection, ids: Collection[int]) -> dict[int, LockedRun]:
    """Lock these runs in ID order, except those that have ended or that another process has locked."""
    rows = prepared.execute(connection, LOCK, {"ids": list(ids)})
    return {
        row.id: LockedRun(row.version_id, row.newest_id, row.has_error, row.requested_state and RunState(row.requested_state))
        for row in rows
    }


def timed_out(connection: Connection, *, limit: int) -> list[int]:
    """Running runs whose dagrun_timeout is over, longest first."""
    rows = connection.exec_driver_sql(f"select id from dag_run where {OVER_ITS_TIMEOUT} order by timeout_at limit %s", (limit,))
    return list(rows.scalars())


def lock_timed_out(connection: Connection, dag_run_id: int) -> bool:
    """Lock one such run; False if another process has it locked, or if it has ended or was started again."""
    row = connection.exec_driver_sql(
        f"select 1 from dag_run where id = %s and {OVER_ITS_TIMEOUT} for no key update skip locked", (dag_run_id,)
    ).first()
    return row is not None


def following(connection: Connection, ids: Collection[int]) -> list[int]:
    """Running runs of the same DAGs that come after these."""
    rows = connection.exec_driver_sql(
        f"""
        select distinct n.id from dag_run r
          join dag_run n on n.dag_id = r.dag_id and n.state = 'running' and {AFTER.format("n", "r")}
         where r.id = any(%s)
        """,
        (list(ids),),
    )
    return sorted(rows.scalars())


def mark_examined(connection: Connection, ids: Collection[int]) -> None:
    """Record that these runs, which the caller has locked, were examined now; so a sweep examines them last."""
    connection.exec_driver_sql("update dag_run set examined_at = clock_timestamp() where id = any(%s)", (list(ids),))


def store_error(connection: Connection, dag_run_id: int, error: str) -> bool:
    """Store why a run cannot be decided, and mark it as examined; whether the reason is new.

    A run that another process has locked is left to that process.
    """
    is_new = connection.exec_driver_sql(
        """
        with held as (
            select id, scheduling_error as was from dag_run where id = %(run)s and state = 'running'
               for no key update skip locked
        )
        update dag_run r set examined_at = clock_timestamp(), scheduling_error = %(error)s
          from held where r.id = held.id
        returning held.was is distinct from r.scheduling_error
        """,
        {"run": dag_run_id, "error": error},
    ).scalar_one_or_none()
    return bool(is_new)


def clear_errors(connection: Connection, ids: Collection[int]) -> None:
    """Delete the stored errors of these runs, which the caller has locked, because they can be decided again."""
    connection.exec_driver_sql("update dag_run set scheduling_error = null where id = any(%s)", (list(ids),))


def close(connection: Connection, ended: Mapping[int, RunState]) -> int:
    """running -> success or failed, for rows that the caller has locked. Returns how many were closed."""
    return prepared.execute(connection, CLOSE, {"ids": list(ended), "states": [state.value for state in ended.values()]}).rowcount
