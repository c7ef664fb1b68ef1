"""Mark: sets the final state of task instances or whole runs by hand.

A running task instance is stopped by its worker first (shutdown); any other gets the state at once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import Connection, Engine

from scheduler.exceptions import PacelineError
from scheduler.states import FAILURES, FINISHED, MARKABLE, NOT_CLEARABLE, NOT_GOOD, RUN_FINISHED, STARTED, RunState
from scheduler.states import TaskState as S
from scheduler.store.actions import clear
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.runs import selection
from scheduler.store.runs.selection import Change, Instance, Run, Runs, Tasks
from scheduler.store.worker import deferrals

#: The states that a task instance can be marked with.
STATES = tuple(state for state in S if state in MARKABLE)


def mark(
    engine: Engine, runs: Runs, tasks: Tasks, state: S, *, clear_downstream: bool = False, dry_run: bool = False
) -> list[Change]:
    """Mark these task instances of these runs. Returns the changes. Each run has a transaction of its own, so it takes the engine.

    A run that has ended keeps its state. `clear_downstream` also clears failed task instances downstream, and queues an
    ended run again for them. A dry run does the same and rolls back.
    """
    if state not in STATES:
        raise PacelineError(f"A task instance cannot be marked {state}: choose one of {', '.join(STATES)}.")
    versions = Versions()
    changes = []
    for key in transact(engine, selection.run_keys, runs):
        changes += transact(engine, _mark_tasks, key, tasks, state, versions, clear_downstream=clear_downstream, dry_run=dry_run)
    return changes


def mark_rows(
    engine: Engine, rows: Mapping[int, Collection[int]], state: S, *, versions: Versions, dry_run: bool = False
) -> list[Change]:
    """Mark task instances by their numbers, which are the values of `rows` by the number of their run. See `mark`."""

    def one(run: int, keys: Collection[int]) -> list[Change]:
        tasks = Tasks(keys=frozenset(keys))
        return transact(engine, _mark_tasks, run, tasks, state, versions, clear_downstream=False, dry_run=dry_run)

    return clear.run_by_run(one, rows)


def mark_run(connection: Connection, dag_id: str, run_id: str, state: RunState) -> list[Change]:
    """End a run as success or failed now. Returns the changes of its task instances.

    Failed: waiting task instances are skipped, and running ones are stopped and fail. Success: every task instance that has
    not succeeded and was not skipped becomes success. NotFoundError.
    """
    if state not in RUN_FINISHED:
        raise PacelineError(f"A run cannot be marked {state}: choose success or failed.")
    (key,) = selection.run_keys(connection, Runs(dag_id=dag_id, run_id=run_id))
    run = selection.lock_run(connection, key)
    if run is None:
        return []
    instances = selection.lock_instances(connection, run.id)
    if state is RunState.SUCCESS:
        changes = _move(connection, run, [one for one in instances if one.state in NOT_GOOD], S.SUCCESS)
    else:
        changes = _end(connection, run, [one for one in instances if one.state not in FINISHED])
    connection.exec_driver_sql(
        """
        update dag_run set state = %(state)s, ended_at = coalesce(ended_at, clock_timestamp())
         where id = %(id)s and state <> %(state)s
        """,
        {"id": run.id, "state": state.value},
    )
    return changes


def _mark_tasks(
    connection: Connection, key: int, tasks: Tasks, state: S, versions: Versions, *, clear_downstream: bool, dry_run: bool
) -> list[Change]:
    run = clear.lock_run(connection, key) if clear_downstream else selection.lock_run(connection, key)
    if run is None:
        return []
    dag = versions.dag(connection, run.version_id)
    instances = selection.lock_instances(connection, run.id, lock=not dry_run)
    picked = selection.pick(dag, instances, tasks)
    changes = _move(connection, run, picked, state, dry_run=dry_run)
    if clear_downstream:
        marked = {one.id for one in picked}
        below = selection.below(dag, picked)
        failed = [one for one in instances if one.task_id in below and one.state in FAILURES and one.id not in marked]
        again = selection.with_setups(dag, instances, failed)
        if dry_run:
            return changes + clear.planned(run, instances, again)
        cleared = clear.clear_instances(connection, run, dag, instances, again)
        if cleared and run.state in RUN_FINISHED:
            clear.queue_again(connection, run, dag)
        changes += cleared
    return changes


def _end(connection: Connection, run: Run, instances: Sequence[Instance]) -> list[Change]:
    started = [one for one in instances if one.state in STARTED]
    return [
        *_move(connection, run, [one for one in instances if one.state not in STARTED], S.SKIPPED),
        *_move(connection, run, started, S.FAILED),
    ]


def _move(connection: Connection, run: Run, instances: Iterable[Instance], state: S, *, dry_run: bool = False) -> list[Change]:
    """Move `instances`, all of which are locked, to `state`, except those that have it or are removed."""
    moved = [one for one in instances if one.state not in {state, S.REMOVED}]
    moved = [one for one in moved if one.state is not S.SHUTDOWN or one.asked != state]
    if not dry_run:
        _set(connection, [one.id for one in moved if one.state not in STARTED], state)
        _stop(connection, [one.id for one in moved if one.state in STARTED], state)
    return [one.change(run, "shutdown" if one.state in STARTED else state.value) for one in moved]


def _set(connection: Connection, ids: Sequence[int], state: S) -> None:
    """none, waiting or ended -> `state`; the decision of a branch is deleted."""
    if not ids:
        return
    parameters = {"ids": list(ids), "state": state.value}
    deferrals.forget(connection, ids)
    connection.exec_driver_sql(
        f"""
        update task_instance
           set state = %(state)s, reason = 'marked ' || %(state)s, ended_at = clock_timestamp(), due_at = null, resume = null,
               decision = null
         where id = any(%(ids)s) and (state is null or state not in {NOT_CLEARABLE.sql})
        """,
        parameters,
    )


def _stop(connection: Connection, ids: Sequence[int], state: S) -> None:
    """running -> shutdown, and then `state` once its worker has stopped it. A task instance that is already stopping gets `state`
    too.
    """
    if ids:
        connection.exec_driver_sql(
            f"""
            update task_instance set state = 'shutdown', asked = %(state)s, reason = 'marked ' || %(state)s
             where id = any(%(ids)s) and state in {STARTED.sql}
            """,
            {"ids": list(ids), "state": state.value},
        )
