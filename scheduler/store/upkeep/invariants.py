"""Invariants between rows: for each a statement that finds the rows that break it.

A running system breaks some of them briefly, so a row counts only after `grace` seconds. The statements lock and change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from paceline.states import DUE, OPEN, RUN_UNFINISHED, STARTED, States, TaskState
from scheduler.deciding.limits import PARALLELISM, POOL, RUN, TASK, TASK_IN_RUN, Limit
from scheduler.store.db import rows
from scheduler.store.db.clock import lost
from scheduler.store.db.database import patiently
from scheduler.store.queueing.limits import RUNNING_RUNS, over

LONGEST_S = 300.0
#: Seconds after which an expired lease should have been renewed or taken over.
STALE_LEASE_S = 120.0


@dataclass(frozen=True, slots=True)
class Broken:
    """A row or run that breaks an invariant; `what` is a sentence without the name of the row."""

    name: str
    dag_id: str | None
    run_id: str | None
    task_id: str | None
    map_index: int | None
    what: str
    since: datetime | None


LATE = "clock_timestamp() - make_interval(secs => %(grace)s)"
STALE = f"{LATE} - make_interval(secs => {STALE_LEASE_S})"


def _gone(timeout: str) -> str:
    """A process `p` whose row is missing or stopped, or that is lost."""
    return f"(p.id is null or p.stopped_at < {LATE} or ({lost(timeout, at=LATE)}))"


def _instances(what: str, since: str, rows: str) -> str:
    """Select task instances `t` with their runs `r`; `rows` continues this FROM clause."""
    return f"""
        select r.dag_id, r.run_id, t.task_id, t.map_index, {what} as what, {since} as since
          from task_instance t join dag_run r on r.id = t.dag_run_id {rows}
    """


def _others(what: str, rows: str, *, dag_id: str = "null", since: str = "null::timestamptz") -> str:
    return f"""
        select {dag_id} as dag_id, null as run_id, null as task_id, null::int as map_index, {what} as what, {since} as since
          from {rows}
    """


def _over(limit: Limit, what: str) -> str:
    return f"""
        select o.dag_id, o.run_id, o.task_id, null::int as map_index, {what} as what, null::timestamptz as since
          from ({over(limit)}) o
    """


#: A task instance in one of these or in NONE ends with its run. A shutdown ends when its worker has stopped the task.
ENDS_WITH_RUN = States(OPEN - {TaskState.SHUTDOWN})
STATEMENTS: Mapping[str, str] = {
    "dead worker": _instances(
        "t.state || ' with worker ' || t.worker || ', which is lost or never existed'",
        "coalesce(p.stopped_at, p.heartbeat_at, t.started_at)",
        f"""left join process p on p.id = t.worker and p.kind = 'worker'
             where t.state in {STARTED.sql} and t.started_at < {LATE} and {_gone("%(timeout)s")}""",
    ),
    "open in a finished run": _instances(
        "coalesce(t.state, 'undecided') || ' although its run has ended: ' || r.state",
        "r.ended_at",
        f"where r.ended_at < {LATE} and {ENDS_WITH_RUN.or_none('t.state')}",
    ),
    "overdue": _instances("t.state || ', and overdue'", "t.due_at", f"where t.state in {DUE.sql} and t.due_at < {LATE}"),
    "deferred without a trigger": _instances(
        "'deferred, and no trigger waits for it'",
        "t.started_at",
        """where t.state = 'deferred'
             and not exists (select 1 from deferral d where d.task_instance_id = t.id and d.dispatch_id = t.dispatch_id)""",
    ),
    "trigger without a deferred task": _instances(
        "'a trigger waits for it, but it is ' || case when t.state = 'deferred' then 'deferred by another dispatch'"
        " else coalesce(t.state, 'undecided') end",
        "d.created_at",
        f"""join deferral d on d.task_instance_id = t.id
             where d.created_at < {LATE} and (t.state is distinct from 'deferred' or t.dispatch_id <> d.dispatch_id)""",
    ),
    "trigger of a dead waiter": _instances(
        "'deferred, and its trigger is with waiter ' || d.waiter || ', which is lost or never existed'",
        "coalesce(p.stopped_at, p.heartbeat_at, d.created_at)",
        f"""join deferral d on d.task_instance_id = t.id and d.dispatch_id = t.dispatch_id
            left join process p on p.id = d.waiter and p.kind = 'waiter'
            where t.state = 'deferred' and d.waiter is not null and d.created_at < {LATE}
              and {_gone("%(waiter_timeout)s")}""",
    ),
    "stale notice": f"""
        select r.dag_id, r.run_id, t.task_id, t.map_index, n.claimed_until as since,
               n.kind || ' was taken by ' || n.claimed_by || ' and never ended' as what
          from notice n join dag_run r on r.id = n.dag_run_id left join task_instance t on t.id = n.task_instance_id
         where n.ended_at is null and n.claimed_by is not null and n.claimed_until < {STALE}
    """,
    "stale DAG file": _others(
        "'the DAG file ' || f.path || ' is claimed by ' || f.claimed_by || ', which does not read it'",
        f"dag_file f where f.claimed_by is not null and f.claimed_until < {STALE}",
        since="f.claimed_until",
    ),
    "backfill without an end": _others(
        "'backfill ' || b.id || ' is open without a date or run left'",
        f"""backfill b where b.ended_at is null and b.created_at < {LATE}
           and not exists (select 1 from backfill_run o where o.backfill_id = b.id and o.state = 'waiting')
           and not exists (select 1 from dag_run r where r.backfill_id = b.id
                              and (r.state in {RUN_UNFINISHED.sql} or r.ended_at >= {LATE}))""",
        dag_id="b.dag_id",
        since="b.created_at",
    ),
    "pool over its slots": _over(POOL, "'pool ' || o.pool || ' has ' || o.most || ' slots and ' || o.held || ' are taken'"),
    "parallelism exceeded": _over(
        PARALLELISM, "o.held || ' task instances are queued or running; core.parallelism allows ' || o.most"
    ),
    "run over max_active_tasks": _over(RUN, "o.held || ' task instances are active; max_active_tasks is ' || o.most"),
    "DAG over max_active_runs": _others(
        "h.held || ' runs are running; max_active_runs is ' || v.max_active_runs",
        f"""dag d join dag_version v on v.id = d.version_id cross join lateral (select {RUNNING_RUNS} as held) h
             where h.held > v.max_active_runs""",
        dag_id="d.dag_id",
    ),
    "task over its limit": _over(TASK, "o.held || ' instances are active; max_active_tis_per_dag is ' || o.most"),
    "task over its limit in a run": _over(
        TASK_IN_RUN, "o.held || ' instances are active; max_active_tis_per_dagrun is ' || o.most"
    ),
    "worker over its concurrency": _others(
        "'worker ' || p.id || ' runs ' || h.held || ' task instances; its concurrency is ' || p.concurrency",
        f"""(select worker, count(*) as held from task_instance where state in {STARTED.sql} group by 1) h
             join process p on p.id = h.worker and p.stopped_at is null where h.held > p.concurrency""",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The values with which the statements compare."""

    grace_s: float
    worker_timeout_s: float
    waiter_timeout_s: float
    parallelism: int


def find(connection: Connection, bounds: Bounds) -> list[Broken]:
    """Every row that breaks an invariant, by invariant."""
    connection.exec_driver_sql("set transaction isolation level repeatable read read only")
    patiently(connection, seconds=LONGEST_S)
    parameters: dict[str, Any] = {
        "grace": bounds.grace_s,
        "timeout": bounds.worker_timeout_s,
        "waiter_timeout": bounds.waiter_timeout_s,
        "parallelism": bounds.parallelism,
    }
    return [
        Broken(name, **row)
        for name, statement in STATEMENTS.items()
        for row in connection.exec_driver_sql(statement, parameters).mappings()
    ]


@dataclass(frozen=True, slots=True)
class RunningRun:
    """A running run and its version."""

    id: int
    dag_id: str
    run_id: str
    version_id: int
    started_at: datetime


def running_runs(connection: Connection, *, grace_s: float) -> list[RunningRun]:
    """Runs that have been running for longer than the grace period."""
    found = connection.exec_driver_sql(
        "select id, dag_id, run_id, version_id, started_at from dag_run"
        f" where state = 'running' and started_at < {LATE} order by id",
        {"grace": grace_s},
    )
    return rows.of_result(RunningRun, found)


def last_ended(connection: Connection, dag_run_id: int) -> dict[int, datetime]:
    """When the last instance of each task ended, by task number."""
    ended = connection.exec_driver_sql(
        "select task_no, max(ended_at) as last from task_instance where dag_run_id = %s and ended_at is not null group by 1",
        (dag_run_id,),
    )
    return {row.task_no: row.last for row in ended}
