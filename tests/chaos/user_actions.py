"""Actions of users as faults: clear, mark, pause, change a pool. Each is noted in the history for the checker."""

import contextlib
import time
from collections.abc import Iterator

from sqlalchemy import Engine

from chaos.fault_context import FaultContext
from chaos.plan import PlannedDag
from chaos.shapes import MEASURES
from scheduler.exceptions import NotFoundError
from scheduler.settings import Core
from scheduler.states import TaskState
from scheduler.store.actions import clear, mark, pools
from scheduler.store.dags import dags
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks

#: Runs by how they stand; of the newest.
NEWEST = "select dag_id, run_id from dag_run where dag_id = any(%s) and state = any(%s) order by id desc limit 20"
CHANGED_POOLS = ("narrow", "odd", "wide")


def cleared(context: FaultContext) -> None:
    """A task and its downstream tasks, in an ended or open run; once, twice or three times."""
    with _engine(context) as engine:
        for _ in range(context.rng.randint(1, 3)):
            dag, run_id = _run(context, ("running", "success", "failed"))
            task_id = context.rng.choice(dag.tasks).task_id
            with context.cluster.history.action("clear", dag.dag_id, run_id, dag.with_descendants([task_id])):
                clear.clear(
                    engine, Runs(dag_id=dag.dag_id, run_id=run_id), Tasks(task_ids=(task_id,), downstream=True), core=Core()
                )


def marked(context: FaultContext) -> None:
    """A task of an open run, in any state."""
    with _engine(context) as engine:
        dag, run_id = _run(context, ("running",))
        task_id = context.rng.choice(dag.tasks).task_id
        state = context.rng.choice((TaskState.SUCCESS, TaskState.FAILED, TaskState.SKIPPED))
        with context.cluster.history.action("mark", dag.dag_id, run_id, [task_id]):
            mark.mark(engine, Runs(dag_id=dag.dag_id, run_id=run_id), Tasks(task_ids=(task_id,)), state)


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
