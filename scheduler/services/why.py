"""why: reads the situation of one task instance and puts into sentences what it waits for. Changes nothing."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Engine

from scheduler.deciding import expansion, past
from scheduler.deciding.situation import (
    BackfillFacts,
    Counted,
    DeferralFacts,
    Holder,
    Limit,
    PoolFacts,
    QueueFacts,
    RunFacts,
    Situation,
)
from scheduler.deciding.why import explain
from scheduler.exceptions import UnreadableVersionError
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings import Settings
from scheduler.states import FINISHED, RunState, TaskState
from scheduler.store.dags import versions
from scheduler.store.db.database import transaction
from scheduler.store.queries import reads
from scheduler.store.queries import why as store
from scheduler.store.runs import run_facts

Row = dict[str, Any]
S = TaskState


def why(engine: Engine, settings: Settings, dag_id: str, run_id: str, task_id: str, *, map_index: int | None = None) -> Row:
    """`{state, waiting_for: [sentence, ...]}`. Without `map_index`, of a mapped task its first instance that has not ended."""
    known = _instances(engine, dag_id, run_id, task_id)
    index = map_index if map_index is not None else _first_open(known)
    ti = reads.task_instance(engine, dag_id, run_id, task_id, map_index=index)
    counts = {S(row["state"]): row["count"] for row in known} if map_index is None and index >= 0 else {}
    return {"state": ti["state"], "map_index": index, "waiting_for": explain(_situation(engine, settings, ti["id"], counts))}


@transaction
def _instances(connection: Connection, dag_id: str, run_id: str, task_id: str) -> list[Row]:
    return store.instances(connection, dag_id, run_id, task_id)


def _first_open(instances: list[Row]) -> int:
    """The map index a person most likely means."""
    still_open = [row["first"] for row in instances if row["state"] not in FINISHED]
    return min(still_open or [row["first"] for row in instances], default=-1)


@transaction
def _situation(connection: Connection, settings: Settings, ti_id: int, counts: dict[S, int]) -> Situation:
    worker_s, silent_s = settings.worker.heartbeat_timeout, settings.scheduler.scheduler_health_check_threshold
    ti = store.instance(connection, ti_id, silent_after_s=worker_s)
    queue = store.queue(connection, ti, silent_after_s=worker_s)
    try:
        dag = versions.Versions().dag(connection, ti["version_id"])
    except UnreadableVersionError as error:
        waits, ti["scheduling_error"] = {}, ti["scheduling_error"] or str(error)
    else:
        task = dag.tasks[dag.number[ti["task_id"]]] if ti["task_id"] in dag.number else None
        waits = {} if task is None else _waits(connection, ti, dag, task)
    return Situation(
        **{name: ti[name] for name in Situation.__slots__ if name in ti and name not in {"state", "pool", "queue"}},
        **waits,
        run=_run(connection, ti),
        state=S(ti["state"] or "none"),
        schedulers=store.alive(connection, "scheduler", silent_after_s=silent_s),
        pool_name=ti["pool"],
        pool=_pool(connection, settings, ti),
        limits=_limits(connection, settings, ti),
        queue=QueueFacts(name=ti["queue"], headroom=settings.scheduler.queue_headroom, **queue),
        deferral=_deferral(connection, ti, silent_s),
        instances=counts,
    )


def _waits(connection: Connection, ti: Row, dag: SerializedDag, task: SerializedTask) -> Row:
    """The other tasks that are looked at before this one may run."""
    run, index = ti["dag_run_id"], ti["map_index"]
    near = {
        name for name in (*task.upstream, *task.setups, *task.scope) if index >= 0 and task.mapped_group is not None
        and dag.tasks[dag.number[name]].mapped_group == task.mapped_group
    }  # fmt: skip
    expands = task.expand is not None and index < 0 and ti["state"] is None
    sources = expansion.sources(task.expand) if expands and task.expand else set()
    others = {*task.upstream, *task.setups, *task.scope, *sources}
    found = store.states(connection, run, others - near) | store.states(connection, run, near, map_index=index)
    before = None
    if task.depends_on_past:
        before = run_facts.before(connection, run, past.relevant(dag), catchup=dag.catchup)
    return {
        "trigger_rule": task.trigger_rule,
        "upstream": _counted(task.upstream, found),
        "setups": _counted(task.setups, found),
        "scope": _counted(task.scope, found),
        "expands_over": _counted(sorted(sources), found) if expands else None,
        "past": past.waits(dag, before).get(dag.number[task.task_id]),
    }


def _counted(names: Iterable[str], found: dict[str, Row]) -> tuple[Counted, ...]:
    return tuple(
        Counted(
            task_id=name,
            states={S(state): count for state, count in found[name]["states"].items()},
            mapped=found[name]["mapped"],
        )
        for name in names
        if name in found
    )


def _run(connection: Connection, ti: Row) -> RunFacts:
    row = store.run(connection, ti["dag_run_id"])
    is_backfill = row["backfill_id"] is not None
    limit = Limit(
        name="max_active_runs",
        limit=row["backfill_limit"] if is_backfill else row["max_active_runs"],
        active=row["running_runs"],
    )
    backfill = BackfillFacts(id=row["backfill_id"], is_paused=row["backfill_paused"], limit=limit) if is_backfill else None
    same = ("is_paused", "file", "import_error", "import_error_line", "runs_ahead")
    return RunFacts(
        dag_id=ti["dag_id"],
        run_id=ti["run_id"],
        state=RunState(ti["run_state"]),
        run_after=ti["run_after"],
        scheduling_error=ti["scheduling_error"],
        running_runs=limit,
        backfill=backfill,
        **{name: row[name] for name in same},
    )


def _pool(connection: Connection, settings: Settings, ti: Row) -> PoolFacts | None:
    row = store.pool(connection, ti, reserve=settings.scheduler.pool_reservation, aging_s=settings.scheduler.priority_aging)
    if row is None:
        return None
    first = row.pop("reserved_for")
    holders = tuple(Holder(**one) for one in row.pop("holders"))
    return PoolFacts(**row, holders=holders, reserved_for=None if first is None else Holder(**first))


def _limits(connection: Connection, settings: Settings, ti: Row) -> tuple[Limit, ...]:
    row = store.limits(connection, ti)
    known = (
        ("max_active_tasks", row["max_active_tasks"], row["active_in_run"]),
        ("max_active_tis_per_dagrun", ti["max_active_tis_per_dagrun"], row["active_of_task_in_run"]),
        ("max_active_tis_per_dag", ti["max_active_tis_per_dag"], row["active_of_task"]),
        ("core.parallelism", settings.core.parallelism, row["active"]),
    )
    return tuple(Limit(name=name, limit=limit, active=active) for name, limit, active in known if limit is not None)


def _deferral(connection: Connection, ti: Row, silent_s: float) -> DeferralFacts | None:
    row = store.deferral(connection, ti["id"])
    return None if row is None else DeferralFacts(**row, waiters=store.alive(connection, "waiter", silent_after_s=silent_s))
