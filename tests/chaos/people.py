"""What people do meanwhile: clear, mark, pause, change a pool. Each is noted in the book, so that the judge knows of it."""

import contextlib
import time
from collections.abc import Iterator

from sqlalchemy import Engine

from chaos.act import Act
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


def cleared(act: Act) -> None:
    """A task and what is below it, in a run that has ended or goes on; once, twice or three times."""
    with _engine(act) as engine:
        for _ in range(act.dice.randint(1, 3)):
            dag, run_id = _run(act, ("running", "success", "failed"))
            task_id = act.dice.choice(dag.tasks).task_id
            with act.stage.book.action("clear", dag.dag_id, run_id, dag.with_descendants([task_id])):
                clear.clear(
                    engine, Runs(dag_id=dag.dag_id, run_id=run_id), Tasks(task_ids=(task_id,), downstream=True), core=Core()
                )


def marked(act: Act) -> None:
    """A task of a run that goes on, whatever its state."""
    with _engine(act) as engine:
        dag, run_id = _run(act, ("running",))
        task_id = act.dice.choice(dag.tasks).task_id
        state = act.dice.choice((TaskState.SUCCESS, TaskState.FAILED, TaskState.SKIPPED))
        with act.stage.book.action("mark", dag.dag_id, run_id, [task_id]):
            mark.mark(engine, Runs(dag_id=dag.dag_id, run_id=run_id), Tasks(task_ids=(task_id,)), state)


def paused(act: Act) -> None:
    """Half of the DAGs, and on again."""
    chosen = act.dice.sample(sorted(act.stage.plan.dags), len(act.stage.plan.dags) // 2)
    with _engine(act) as engine:
        try:
            for dag_id in chosen:
                transact(engine, dags.pause, dag_id)
            time.sleep(min(act.pause_s(), 8.0))
        finally:
            for dag_id in chosen:
                act.surely(lambda dag_id=dag_id: transact(engine, dags.unpause, dag_id))  # type: ignore[misc]


def pool_shrunk(act: Act) -> None:
    """To one slot, and back."""
    name = act.dice.choice(CHANGED_POOLS)
    with _engine(act) as engine:
        try:
            act.stage.book.shrunk[name] = time.monotonic()
            transact(engine, pools.set_pool, name, 1)
            time.sleep(min(act.pause_s(), 8.0))
        finally:
            act.surely(lambda: transact(engine, pools.set_pool, name, act.stage.plan.pools[name]))


@contextlib.contextmanager
def _engine(act: Act) -> Iterator[Engine]:
    engine = database.create(act.stage.settings, application="chaos people")
    try:
        yield engine
    finally:
        engine.dispose()


def _run(act: Act, states: tuple[str, ...]) -> tuple[PlannedDag, str]:
    """A recent run of a DAG that is triggered."""
    measures = {one.dag_id for one in MEASURES}
    triggered = [one.dag_id for one in act.stage.plan.dags.values() if one.schedule is None and one.dag_id not in measures]
    found = act.meter.ask(NEWEST, triggered, list(states))
    if not found:
        raise NotFoundError(f"there is no run that is {' or '.join(states)}")
    dag_id, run_id = act.dice.choice(found)
    return act.stage.plan.dags[dag_id], run_id
