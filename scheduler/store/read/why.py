"""`tasks why`: reads the situation of one task instance, and explains in sentences what it waits for. It changes nothing."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

from sqlalchemy import Connection

from paceline.exceptions import UnreadableVersionError
from paceline.states import FINISHED, HOLDS_SLOTS, OPEN, RUN_FINISHED, STARTED, WAITS_FOR_WORKER, RunState
from paceline.states import TaskState as S
from scheduler.deciding import expansion, rules
from scheduler.deciding.limits import PARALLELISM, RUN, RUNS, TASK, TASK_IN_RUN
from scheduler.deciding.waits import Holder, LimitFacts, PoolFacts, QueueFacts
from scheduler.deciding.why import BackfillFacts, Counted, DeferralFacts, RunFacts, Situation, explain
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db import rows
from scheduler.store.db.clock import ALIVE, LIVE_WORKER
from scheduler.store.queueing.capacity import BY_AGED_RANK, BY_RANK, MAY_CONTINUE
from scheduler.store.queueing.limits import HOLDS, IN_POOL, MOST_RUNS, SHARES_RUNS, towards
from scheduler.store.read import dags, reads
from scheduler.store.read.listing import Row
from scheduler.store.runs import run_facts

#: The number of task instances in a pool that are named; the others are counted.
NAMED = 8
#: Those with a worker first, then those that wait for one.
FIRST_OPEN = f"""
select id, task_id, map_index from task_instance where dag_run_id = %(run)s and (state is null or state in {OPEN.sql})
 order by state is null, task_no, map_index limit 5
"""
#: The first sentence about a run whose other tasks a person or a timeout ended.
AFTER_TEARDOWNS = "It ends as {state} once its teardowns have ended."
#: The limits besides the pool, in the order in which they are named.
LIMITS = (RUN, TASK_IN_RUN, TASK, PARALLELISM)


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of an explanation. Of other DAGs, only those that have one of `tags` are named; None names all.

    `versions` are those that its process has read already.
    """

    tags: Collection[str] | None = None
    versions: Versions = field(default_factory=Versions)


def why(
    connection: Connection,
    settings: Settings,
    dag_id: str,
    run_id: str,
    task_id: str,
    *,
    map_index: int | None = None,
    reader: Reader | None = None,
) -> Row:
    """`{state, waiting_for: [sentence, ...]}`. Without `map_index`, the first unfinished instance of a mapped task is meant."""
    known = _instances(connection, dag_id, run_id, task_id)
    index = map_index if map_index is not None else _first_open(known)
    ti = reads.task_instance(connection, dag_id, run_id, task_id, map_index=index)
    counts = {S(row["state"]): row["count"] for row in known} if map_index is None and index >= 0 else {}
    situation = _situation(connection, settings, ti["id"], counts, reader or Reader())
    return {"state": ti["state"], "map_index": index, "waiting_for": explain(situation)}


def explain_open(connection: Connection, settings: Settings, tasks: Sequence[Row], *, limit: int = 50) -> None:
    """Give up to `limit` task instances that wait the reason of `why`, which is that of now: the stored one is of a past change."""
    reader = Reader()
    waiting = [task for task in tasks if task["state"] in WAITS_FOR_WORKER]
    for task in waiting[:limit]:
        task["reason"] = " ".join(explain(_situation(connection, settings, task["id"], {}, reader)))
    for task in waiting[limit:]:
        task["reason"] = None


def why_run(connection: Connection, settings: Settings, dag_id: str, run_id: str, *, reader: Reader | None = None) -> Row:
    """`{state, waiting_for: [sentence, ...]}` of a run: why it has not started, or what its first open task instances wait for."""
    run = reads.run_alone(connection, dag_id, run_id)
    if run["state"] in RUN_FINISHED:
        return {"state": run["state"], "waiting_for": [f"It has ended as {run['state']}."]}
    found = rows.dicts(connection.exec_driver_sql(FIRST_OPEN, {"run": run["id"]}))
    sentences = [AFTER_TEARDOWNS.format(state=run["requested_state"])] if run["requested_state"] else []
    for row in found[:1] if run["state"] == RunState.QUEUED else found:
        reasons = explain(_situation(connection, settings, row["id"], {}, reader or Reader()))
        name = row["task_id"] if row["map_index"] < 0 else f"{row['task_id']}[{row['map_index']}]"
        sentences += reasons if run["state"] == RunState.QUEUED else [f"{name}: {reason}" for reason in reasons]
    return {"state": run["state"], "waiting_for": sentences or ["All its task instances have ended: a scheduler closes it soon."]}


def _instances(connection: Connection, dag_id: str, run_id: str, task_id: str) -> list[Row]:
    """The instances of a task by state: the state, their number, and their smallest map index."""
    found = connection.exec_driver_sql(
        "select coalesce(t.state, 'none') as state, count(*) as count, min(t.map_index) as first"
        " from dag_run r join task_instance t on t.dag_run_id = r.id"
        " where r.dag_id = %s and r.run_id = %s and t.task_id = %s group by 1",
        (dag_id, run_id, task_id),
    )
    return rows.dicts(found)


def _first_open(instances: list[Row]) -> int:
    """The smallest map index of an unfinished instance, or of any."""
    still_open = [row["first"] for row in instances if row["state"] not in FINISHED]
    return min(still_open or [row["first"] for row in instances], default=-1)


def named_holders(connection: Connection, rows: Sequence[Row], reader: Reader) -> tuple[Holder, ...]:
    """These task instances (dag_id, run_id, task_id, map_index, pool_slots) as holders."""
    found = {row["dag_id"] for row in rows}
    seen = found if reader.tags is None else set(dags.visible(connection, found, reader.tags))
    return tuple(
        _named_holder(row) if row["dag_id"] in seen else Holder(name=None, run_id=None, slots=row["pool_slots"]) for row in rows
    )


def _named_holder(row: Row) -> Holder:
    index = f"[{row['map_index']}]" if row["map_index"] >= 0 else ""
    return Holder(name=f"{row['dag_id']}.{row['task_id']}{index}", run_id=row["run_id"], slots=row["pool_slots"])


def _situation(connection: Connection, settings: Settings, ti_id: int, counts: dict[S, int], reader: Reader) -> Situation:
    worker_s, silent_s = settings.worker.heartbeat_timeout, settings.scheduler.scheduler_health_check_threshold
    ti = _instance(connection, ti_id, silent_after_s=worker_s)
    try:
        dag = reader.versions.dag(connection, ti["version_id"])
    except UnreadableVersionError as error:
        waits, ti["scheduling_error"] = {}, ti["scheduling_error"] or str(error)
    else:
        task = dag.tasks[dag.number[ti["task_id"]]] if ti["task_id"] in dag.number else None
        waits = {} if task is None else _waits(connection, ti, dag, task)
    return Situation(
        **{one.name: ti[one.name] for one in fields(Situation) if one.name in ti and one.name not in {"state", "pool", "queue"}},
        **waits,
        run=_run(connection, ti),
        state=S(ti["state"] or "none"),
        schedulers=_alive(connection, "scheduler", silent_after_s=silent_s),
        pool_name=ti["pool"],
        pool=_pool(connection, settings, ti, reader),
        limits=_limits(connection, settings, ti),
        queue=_queue(connection, settings, ti),
        deferral=_deferral(connection, ti, silent_s),
        instances=counts,
    )


def _instance(connection: Connection, ti_id: int, *, silent_after_s: float) -> Row:
    """The task instance with its run, and whether its worker is alive."""
    return _one(
        connection,
        f"""
        select t.*, clock_timestamp() as now, r.dag_id, r.run_id, r.state as run_state, r.run_after, r.version_id,
               case when r.state = 'running' then r.scheduling_error end as scheduling_error,
               exists (select 1 from process p where p.id = t.worker and {ALIVE}) as worker_alive
          from task_instance t join dag_run r on r.id = t.dag_run_id where t.id = %(id)s
        """,
        {"id": ti_id, "silent": silent_after_s},
    )


def _waits(connection: Connection, ti: Row, dag: SerializedDag, task: SerializedTask) -> Row:
    """The other tasks on which it depends whether this one can run."""
    run, index = ti["dag_run_id"], ti["map_index"]
    near = {
        name for name in (*task.upstream, *task.setups, *task.scope) if index >= 0 and task.mapped_group is not None
        and dag.tasks[dag.number[name]].mapped_group == task.mapped_group
    }  # fmt: skip
    expands = task.expand is not None and index < 0 and ti["state"] is None
    sources = expansion.sources(task.expand) if expands and task.expand else set()
    others = {*task.upstream, *task.setups, *task.scope, *sources}
    found = _states(connection, run, others - near) | _states(connection, run, near, map_index=index)
    gate = None if task.loop_gate is None or index < 1 else task.loop_gate
    before = None
    if task.depends_on_past:
        before = run_facts.before(connection, run, rules.past_relevant(dag), catchup=dag.catchup)
    return {
        "trigger_rule": task.trigger_rule,
        "upstream": _counted(task.upstream, found),
        "setups": _counted(task.setups, found),
        "scope": _counted(task.scope, found),
        "loop_gate": None if gate is None else _states(connection, run, {gate}, map_index=index - 1).get(gate),
        "expands_over": _counted(sorted(sources), found) if expands else None,
        "past": rules.past_waits(dag, before).get(dag.number[task.task_id]),
    }


def _counted(names: Iterable[str], found: dict[str, Counted]) -> tuple[Counted, ...]:
    return tuple(found[name] for name in names if name in found)


def _states(
    connection: Connection, dag_run_id: int, task_ids: Collection[str], *, map_index: int | None = None
) -> dict[str, Counted]:
    """The number of instances by task_id and state; with `map_index`, only of that instance."""
    found = connection.exec_driver_sql(
        """
        select task_id, jsonb_object_agg(state, n) as states, bool_or(mapped) as mapped from (
               select task_id, coalesce(state, 'none') as state, count(*) as n, bool_or(map_index >= 0) as mapped
                 from task_instance
                where dag_run_id = %(run)s and task_id = any(%(tasks)s)
                  and (%(index)s::int is null or map_index in (-1, %(index)s::int))
                group by 1, 2) t
         group by 1
        """,
        {"run": dag_run_id, "tasks": list(task_ids), "index": map_index},
    )
    counted = rows.of_result(Counted, found)
    return {one.task_id: replace(one, states={S(state): count for state, count in one.states.items()}) for one in counted}


def _run(connection: Connection, ti: Row) -> RunFacts:
    """What decides whether the run can start and continue: its DAG with newest version and file, its backfill, earlier runs."""
    row = _one(
        connection,
        f"""
        select coalesce(not {MAY_CONTINUE}, false) as is_paused, d.file, e.message as import_error, e.line as import_error_line,
               b.id as backfill_id, b.is_paused as backfill_paused,
               {MOST_RUNS} as "limit", (select count(*) from dag_run o where o.state = 'running' and {SHARES_RUNS}) as active,
               (select count(*) from dag_run o where o.state = 'queued' and {SHARES_RUNS}
                   and case when r.backfill_id is null then (o.run_after, o.id) < (r.run_after, r.id)
                       else o.backfill_ordinal < r.backfill_ordinal end) as runs_ahead
          from dag_run r
          join dag d on d.dag_id = r.dag_id
          join dag_version v on v.id = d.version_id
          left join dag_schedule s on s.dag_id = r.dag_id
          left join import_error e on e.file = d.file and d.bundle is null
          left join backfill b on b.id = r.backfill_id
         where r.id = %(run)s
        """,
        {"run": ti["dag_run_id"]},
    )
    limit = LimitFacts(name=RUNS, limit=row.pop("limit"), active=row.pop("active"))
    number, is_paused = row.pop("backfill_id"), row.pop("backfill_paused")
    backfill = None if number is None else BackfillFacts(id=number, is_paused=is_paused, limit=limit)
    same = {name: ti[name] for name in ("dag_id", "run_id", "run_after", "scheduling_error")}
    return RunFacts(state=RunState(ti["run_state"]), running_runs=limit, backfill=backfill, **same, **row)


def _pool(connection: Connection, settings: Settings, ti: Row, reader: Reader) -> PoolFacts | None:
    """The pool of a task instance and, with reservation, the task instance that it is reserved for; None if it does not exist."""
    aging_s = settings.scheduler.priority_aging
    rank = BY_AGED_RANK if aging_s else BY_RANK
    key = {"pool": ti["pool"], "id": ti["id"], "aging_s": aging_s}
    found = connection.exec_driver_sql(
        f"""
        with held as (
            select t.id, t.pool_slots from pool p join task_instance t on t.pool = p.name where p.name = %(pool)s and {IN_POOL}
        )
        select p.name, p.slots, (select coalesce(sum(pool_slots), 0)::bigint from held) as used,
               (select count(*) from held) as holder_count,
               (select count(*) from task_instance t join dag_run r on r.id = t.dag_run_id and r.state = 'running'
                 where t.pool = p.name and t.state = 'scheduled'
                   and {_in_front(rank)}) as ahead
          from pool p where p.name = %(pool)s
        """,
        key,
    )
    pool = found.mappings().first()
    if pool is None:
        return None
    key |= {"free": pool["slots"] - pool["used"], "slots": pool["slots"]}
    first = _reserved_for(connection, key, rank) if settings.scheduler.pool_reservation else []
    reserved_for = next(iter(named_holders(connection, first, reader)), None)
    return PoolFacts(**pool, holders=named_holders(connection, _holders(connection, ti["pool"]), reader), reserved_for=reserved_for)


def _holders(connection: Connection, name: str) -> list[Row]:
    found = connection.exec_driver_sql(
        f"""
        select r.dag_id, r.run_id, t.task_id, t.map_index, t.pool_slots
          from pool p join task_instance t on t.pool = p.name join dag_run r on r.id = t.dag_run_id
         where p.name = %s and {IN_POOL}
         order by t.pool_slots desc, t.started_at nulls last, t.id limit %s
        """,
        (name, NAMED),
    )
    return rows.dicts(found)


def _reserved_for(connection: Connection, key: Row, rank: str) -> list[Row]:
    """The highest-ranked task instance before this one that only lacks slots, if there is one."""
    found = connection.exec_driver_sql(
        f"""
        select r.dag_id, r.run_id, t.task_id, t.map_index, t.pool_slots
          from task_instance t
          join dag_run r on r.id = t.dag_run_id and r.state = 'running'
          join dag_version v on v.id = r.version_id
          join dag_schedule s on s.dag_id = r.dag_id and {MAY_CONTINUE}
         where t.pool = %(pool)s and t.state = 'scheduled' and t.pool_slots > %(free)s and t.pool_slots <= %(slots)s
           and {_in_front(rank)}
           and v.max_active_tasks > (select count(*) from task_instance o
                where o.dag_run_id = r.id and o.state in {HOLDS_SLOTS.sql})
         order by {rank} desc, t.id limit 1
        """,
        key,
    )
    return rows.dicts(found)


def _in_front(rank: str) -> str:
    """SQL: `t` ranks before the task instance `id`. It excludes `id` itself, whose aged rank changes with the clock."""
    return f"t.id <> %(id)s and (-({rank}), t.id) < (select -({rank}), t.id from task_instance t where t.id = %(id)s)"


def _limits(connection: Connection, settings: Settings, ti: Row) -> tuple[LimitFacts, ...]:
    found = connection.exec_driver_sql(towards(*LIMITS), {"id": ti["id"], "parallelism": settings.core.parallelism})
    return tuple(rows.of_result(LimitFacts, found))


def _queue(connection: Connection, settings: Settings, ti: Row) -> QueueFacts:
    """The Celery queue of a task instance: its workers, its messages, and how many of these were sent before its own."""
    row = _one(
        connection,
        f"""
        select w.workers, w.places, t.running, t.queued, t.ahead
          from (select count(*) as workers, coalesce(sum(concurrency), 0)::bigint as places
                  from process p where %(queue)s = any(p.queues) and {LIVE_WORKER}) w,
               (select count(*) filter (where state in {STARTED.sql}) as running,
                       count(*) filter (where state = 'queued') as queued,
                       count(*) filter (where state = 'queued' and (queued_at, id) < (%(queued_at)s, %(id)s)) as ahead
                  from task_instance t where queue = %(queue)s and {HOLDS}) t
        """,
        {"queue": ti["queue"], "queued_at": ti["queued_at"], "id": ti["id"], "silent": settings.worker.heartbeat_timeout},
    )
    return QueueFacts(name=ti["queue"], prefetch_window=settings.scheduler.prefetch_window, **row)


def _deferral(connection: Connection, ti: Row, silent_s: float) -> DeferralFacts | None:
    """The trigger of a deferred task instance, and the waiter that awaits it, if that is alive."""
    found = connection.exec_driver_sql(
        "select d.classpath, p.id as waiter from deferral d"
        " left join process p on p.id = d.waiter and p.stopped_at is null where d.task_instance_id = %s",
        (ti["id"],),
    )
    row = found.mappings().first()
    return None if row is None else DeferralFacts(**row, waiters=_alive(connection, "waiter", silent_after_s=silent_s))


def _alive(connection: Connection, kind: str, *, silent_after_s: float) -> int:
    """The number of live processes of this kind."""
    found: int = connection.exec_driver_sql(
        f"select count(*) from process p where p.kind = %(kind)s and {ALIVE}", {"kind": kind, "silent": silent_after_s}
    ).scalar_one()
    return found


def _one(connection: Connection, statement: str, parameters: Row) -> Row:
    return dict(connection.exec_driver_sql(statement, parameters).mappings().one())
