"""Actions of users as faults: clear, mark, pause, change a pool. Each is noted in the history for the checker."""

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine

from chaos import corners
from chaos.corners import CHANGING, CHANGING_FILE, RETAINED, TEARDOWN
from chaos.fault_context import FaultContext
from chaos.plan import PlannedDag
from chaos.shapes import MEASURES
from paceline.exceptions import NotFoundError
from paceline.states import RunState, TaskState
from scheduler.settings import Core
from scheduler.store.actions import clear, mark
from scheduler.store.dags import dags
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.queueing import pools
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.upkeep import retention

#: Runs by how they stand; of the newest.
NEWEST = "select dag_id, run_id from dag_run where dag_id = any(%s) and state = any(%s) order by id desc limit 20"
#: Seconds until the task between a setup and its teardown runs.
BUSY_S = 20.0
BUSY = """
select 1 from task_instance t join dag_run r on r.id = t.dag_run_id
 where r.dag_id = %s and r.run_id = %s and t.task_id = 'busy' and t.state = 'running'
"""
CHANGED_POOLS = ("narrow", "odd", "wide")


def cleared(context: FaultContext) -> None:
    """A task and its downstream tasks, in an ended or open run; once, twice or three times."""
    with _engine(context) as engine:
        for _ in range(context.rng.randint(1, 3)):
            dag, run_id = _run(context, ("running", "success", "failed"))
            task_id = context.rng.choice(dag.tasks).task_id
            with context.cluster.history.action("clear", dag.dag_id, run_id, dag.with_descendants([task_id])):
                tasks = Tasks(task_ids=(task_id,), downstream=True)
                transact(engine, clear.clear, Runs(dag_id=dag.dag_id, run_id=run_id), tasks, core=Core())


def marked(context: FaultContext) -> None:
    """A task of an open run, in any state."""
    with _engine(context) as engine:
        dag, run_id = _run(context, ("running",))
        task_id = context.rng.choice(dag.tasks).task_id
        state = context.rng.choice((TaskState.SUCCESS, TaskState.FAILED, TaskState.SKIPPED))
        with context.cluster.history.action("mark", dag.dag_id, run_id, [task_id]):
            transact(engine, mark.mark, Runs(dag_id=dag.dag_id, run_id=run_id), Tasks(task_ids=(task_id,)), state)


def paused(context: FaultContext) -> None:
    """Half of the DAGs, and on again."""
    chosen = context.rng.sample(sorted(context.cluster.plan.dags), len(context.cluster.plan.dags) // 2)
    with _engine(context) as engine:
        try:
            for dag_id in chosen:
                transact(engine, dags.pause, dag_id)
            time.sleep(min(context.pause_s(), 8.0))
        finally:
            for dag_id in chosen:
                context.retry_until_done(lambda dag_id=dag_id: transact(engine, dags.unpause, dag_id))  # type: ignore[misc]


def pool_shrunk(context: FaultContext) -> None:
    """To one slot, and back."""
    name = context.rng.choice(CHANGED_POOLS)
    with _engine(context) as engine:
        try:
            context.cluster.history.shrunk[name] = time.monotonic()
            transact(engine, pools.set_pool, name, 1)
            time.sleep(min(context.pause_s(), 8.0))
        finally:
            context.retry_until_done(lambda: transact(engine, pools.set_pool, name, context.cluster.plan.pools[name]))


def scope_ended(context: FaultContext) -> None:
    """What is between a setup and its teardown is ended: the run is marked, or the task and all below it."""
    run_id = context.trigger(TEARDOWN)
    deadline = time.monotonic() + BUSY_S
    while not context.meter.ask(BUSY, TEARDOWN, run_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    state = context.rng.choice((TaskState.FAILED, TaskState.SUCCESS))
    with _engine(context) as engine, context.cluster.history.action("mark", TEARDOWN, run_id, ("up", "busy", "after", "down")):
        if context.rng.random() < 0.5:
            transact(engine, mark.mark_run, TEARDOWN, run_id, RunState(state))
        else:
            transact(engine, mark.mark, Runs(dag_id=TEARDOWN, run_id=run_id), Tasks(task_ids=("busy",), downstream=True), state)


def version_switched(context: FaultContext) -> None:
    """A file is saved while runs of its DAG are open, which then continue with another version, with other task numbers."""
    cluster = context.cluster
    for _ in range(context.rng.randint(1, 3)):
        context.trigger(CHANGING)
        context.trigger(CHANGING)
        draft = cluster.settings.dags_folder / f".{CHANGING_FILE}"
        draft.write_text(corners.changed(cluster.ledger, context.rng), encoding="utf-8")
        draft.rename(cluster.settings.dags_folder / CHANGING_FILE)
        time.sleep(min(context.pause_s(), 4.0))


def runs_deleted(context: FaultContext) -> None:
    """Retention of one DAG, by the condition of the product: all of its ended runs that nothing needs any more."""
    with _engine(context) as engine, engine.begin() as connection:
        connection.exec_driver_sql(
            f"delete from dag_run r where r.dag_id = %(dag)s and {retention.FREE_RUN}",
            {"dag": RETAINED, "before": datetime.now(UTC) - timedelta(seconds=1)},
        )


@contextlib.contextmanager
def _engine(context: FaultContext) -> Iterator[Engine]:
    engine = database.create(context.cluster.settings, application="chaos users")
    try:
        yield engine
    finally:
        engine.dispose()


def _run(context: FaultContext, states: tuple[str, ...]) -> tuple[PlannedDag, str]:
    """A recent run of a DAG that is triggered."""
    measures = {measure.dag_id for measure in MEASURES}
    triggered = [dag.dag_id for dag in context.cluster.plan.dags.values() if dag.schedule is None and dag.dag_id not in measures]
    found = context.meter.ask(NEWEST, triggered, list(states))
    if not found:
        raise NotFoundError(f"there is no run that is {' or '.join(states)}")
    dag_id, run_id = context.rng.choice(found)
    return context.cluster.plan.dags[dag_id], run_id
