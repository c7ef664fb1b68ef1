"""Invariants between the rows of the database, and between these and the messages of the broker.

A running system breaks some of them briefly, so a row counts only after `grace` seconds. The statements lock and change nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.states import DUE, FINISHED, OPEN, RUN_UNFINISHED, STARTED, States, TaskState
from scheduler.deciding.evaluate import evaluate, run_state
from scheduler.deciding.limits import PARALLELISM, POOL, RUN, TASK, TASK_IN_RUN, Limit
from scheduler.messaging.brokers import Brokers
from scheduler.messaging.publisher import dispatch_ids_in_brokers
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db import clock, rows
from scheduler.store.db.clock import lost
from scheduler.store.db.database import patiently, transact
from scheduler.store.moves.queue import queued_longer_than
from scheduler.store.queueing.limits import RUNNING_RUNS, over
from scheduler.store.runs import run_facts

LONGEST_S = 300.0
#: Seconds after which an expired lease should have been renewed or taken over.
STALE_LEASE_S = 120.0
#: Seconds in which schedulers repair the effects of ordinary failures.
GRACE_S = 15.0
MOST_MESSAGES = 100_000
UNDECIDED = "undecided although it can be decided"
UNCLOSED = "run that can only end"
UNREADABLE = "run that cannot be decided"
UNSENT = "queued without a message"


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


#: The tables whose rows go with their task instance. No foreign key guards them: a statement that adds a row holds it.
ROWS_OF_INSTANCES = ("task_try", "xcom", "task_state", "deferral", "external_job", "task_progress", "instance_note", "notice")
#: A task instance in one of these or in NONE ends with its run. A shutdown ends when its worker has stopped the task.
ENDS_WITH_RUN = States(OPEN - {TaskState.SHUTDOWN})
STATEMENTS: Mapping[str, str] = {
    "row without its task instance": _others(
        "'the table ' || o.name || ' has a row of task instance ' || o.id || ', which is deleted'",
        "("
        + " union all ".join(
            f"""
            select '{table}' as name, x.task_instance_id as id from {table} x
             where x.task_instance_id is not null
               and not exists (select from task_instance t where t.id = x.task_instance_id)"""
            for table in ROWS_OF_INSTANCES
        )
        + ") o",
    ),
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


@dataclass(frozen=True, slots=True)
class Tools:
    """The sources of the check, and its grace period."""

    engine: Engine
    settings: Settings
    brokers: Brokers
    grace_s: float = GRACE_S
    versions: Versions = field(default_factory=Versions)


def _of_rows(connection: Connection, tools: Tools) -> list[Broken]:
    """Every row that breaks an invariant, by invariant."""
    connection.exec_driver_sql("set transaction isolation level repeatable read read only")
    patiently(connection, seconds=LONGEST_S)
    parameters: dict[str, Any] = {
        "grace": tools.grace_s,
        "timeout": tools.settings.worker.heartbeat_timeout,
        "waiter_timeout": tools.settings.waiter.heartbeat_timeout,
        "parallelism": tools.settings.core.parallelism,
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


def _running_runs(connection: Connection, *, grace_s: float) -> list[RunningRun]:
    """Runs that have been running for longer than the grace period."""
    found = connection.exec_driver_sql(
        "select id, dag_id, run_id, version_id, started_at from dag_run"
        f" where state = 'running' and started_at < {LATE} order by id",
        {"grace": grace_s},
    )
    return rows.of_result(RunningRun, found)


def _last_ended(connection: Connection, dag_run_id: int) -> dict[int, datetime]:
    """When the last instance of each task ended, by task number."""
    ended = connection.exec_driver_sql(
        "select task_no, max(ended_at) as last from task_instance where dag_run_id = %s and ended_at is not null group by 1",
        (dag_run_id,),
    )
    return {row.task_no: row.last for row in ended}


def find(tools: Tools) -> list[Broken]:
    """Everything that has broken an invariant for longer than the grace period. It changes nothing.

    BROKER_ERRORS if no broker answers.
    """
    broken = transact(tools.engine, _of_rows, tools)
    broken += _unsent(tools)
    for run in transact(tools.engine, _running_runs, grace_s=tools.grace_s):
        broken += transact(tools.engine, _of_run, run, tools)
    return broken


def _unsent(tools: Tools) -> list[Broken]:
    age_s = max(tools.grace_s, tools.settings.scheduler.task_queued_timeout)
    suspects = transact(tools.engine, queued_longer_than, age_s, limit=MOST_MESSAGES)
    present = dispatch_ids_in_brokers(tools.brokers, {message.queue for message in suspects})
    missing = [message for message in suspects if message.dispatch_id not in present]
    return [
        Broken(
            name=UNSENT, dag_id=message.dag_id, run_id=message.run_id, task_id=message.task_id, map_index=message.map_index,
            since=None, what=f"queued, and the broker has no message for it in queue {message.queue}",
        )
        for message in missing
    ]  # fmt: skip


def _of_run(connection: Connection, run: RunningRun, tools: Tools) -> list[Broken]:
    """The decisions that promote has left undone in a run for longer than the grace period."""
    try:
        return list(_undone(connection, run, tools))
    except DBAPIError:
        raise
    except Exception as error:
        return [_broken(run, UNREADABLE, f"it cannot be decided: {type(error).__name__}: {error}", run.started_at)]


def _undone(connection: Connection, run: RunningRun, tools: Tools) -> Iterator[Broken]:
    dag = tools.versions.dag(connection, run.version_id)
    states = run_facts.states_of(connection, [run.id]).get(run.id, {})
    known = run_facts.read(connection, dag, run.id)
    ended = _last_ended(connection, run.id)
    late = clock.now(connection) - timedelta(seconds=tools.grace_s)
    evaluation = evaluate(dag, states, known)
    for no, index, becomes in [
        *((each.task_no, each.map_index, f"it should be {each.state}: {each.reason}") for each in evaluation.decisions),
        *((no, -1, "it should be expanded: every task that it is mapped over has ended") for no in evaluation.expand),
    ]:
        since = max((ended[above] for above in dag.upstream[no] if above in ended), default=run.started_at)
        if since < late:
            yield _broken(run, UNDECIDED, f"undecided, and {becomes}", since, task_id=dag.tasks[no].task_id, map_index=index)
    since = max(ended.values(), default=run.started_at)
    open_states = {state for of_task in states.values() for state in of_task.values()} - FINISHED
    if since < late and open_states <= {TaskState.NONE} and not evaluation.decisions and not evaluation.expand:
        ends = run_state(dag, states, waiting_for_past=evaluation.waits_for_past(known))
        if ends is not None:
            how = "none of its task instances can change any more" if open_states else "all its task instances have ended"
            yield _broken(run, UNCLOSED, f"running although {how}: it should be {ends}", since)


def _broken(
    run: RunningRun, name: str, what: str, since: datetime, *, task_id: str | None = None, map_index: int | None = None
) -> Broken:
    return Broken(
        name=name, dag_id=run.dag_id, run_id=run.run_id, task_id=task_id, map_index=map_index, what=what, since=since
    )  # fmt: skip
