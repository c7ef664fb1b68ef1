"""Mark: sets the final state of task instances or whole runs by hand.

A running task instance is stopped by its worker first (shutdown); any other gets the state at once.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import Connection

from paceline.exceptions import PacelineError, UnreadableVersionError
from paceline.states import FAILURES, MARKABLE, RUN_FINISHED, STARTED, SUSPENDED, UNFINISHED, RunState
from paceline.states import TaskState as S
from scheduler.deciding.evaluate import still_to_run
from scheduler.serialized.dag import SerializedDag
from scheduler.store.actions import clear
from scheduler.store.dags.versions import Versions
from scheduler.store.moves import mark as moves
from scheduler.store.moves.stop import stop
from scheduler.store.queueing.limits import OWN_RANK
from scheduler.store.runs import selection
from scheduler.store.runs.selection import Change, Changes, Instance, Run, Runs, Tasks

#: The states that a task instance can be marked with.
STATES = tuple(state for state in S if state in MARKABLE)


def mark(
    connection: Connection, runs: Runs, tasks: Tasks, state: S, *, clear_downstream: bool = False, dry_run: bool = False
) -> Changes:
    """Mark these task instances of these runs: of all, or, after an error, of none. Returns the changes; see `clear.clear`.

    A run that has ended keeps its state. `clear_downstream` also clears failed task instances downstream, and queues an
    ended run again for them. The caller undoes a dry run.
    """
    if state not in STATES:
        raise PacelineError(f"A task instance cannot be marked {state}: choose one of {', '.join(STATES)}.")
    versions = Versions()

    def one(key: int, seen: clear.Seen) -> list[Change]:
        return _mark_tasks(connection, key, tasks, state, versions, clear_downstream=clear_downstream, dry_run=dry_run, seen=seen)

    return clear.in_each_run(connection, runs, tasks, one, versions, dry_run=dry_run)


def mark_keys(
    connection: Connection, run: int, keys: Collection[int], state: S, versions: Versions, *, dry_run: bool
) -> list[Change]:
    """Mark task instances of a run by their numbers."""
    tasks = Tasks(keys=frozenset(keys))
    return _mark_tasks(connection, run, tasks, state, versions, clear_downstream=False, dry_run=dry_run, seen=None)


def mark_run(connection: Connection, dag_id: str, run_id: str, state: RunState) -> Changes:
    """End a run as success or failed. Returns the changes of its task instances. NotFoundError.

    Failed: task instances whose try has started are stopped and fail, also deferred and rescheduled ones, and the others are
    skipped. Success: every task instance that has not succeeded and was not skipped becomes success. Teardowns run if their
    setup succeeded; then the run ends after them.
    """
    if state not in RUN_FINISHED:
        raise PacelineError(f"A run cannot be marked {state}: choose success or failed.")
    (key,) = selection.run_keys(connection, Runs(dag_id=dag_id, run_id=run_id))
    run = selection.lock_run(connection, key)
    return Changes() if run is None else end_run(connection, run, state)


def end_run(connection: Connection, run: Run, state: RunState, *, stopped: S | None = None, reason: str | None = None) -> Changes:
    """End a locked run as `mark_run` does, for a person or for another `reason`. Returns the changes of its task instances.

    Task instances whose try has started get the state `stopped`.
    """
    instances = selection.lock_instances(connection, run.id)
    becomes = {
        one: S.SUCCESS if state is RunState.SUCCESS else (stopped or S.FAILED) if one.state in STARTED | SUSPENDED else S.SKIPPED
        for one in instances
        if one.state in (UNFINISHED | FAILURES if state is RunState.SUCCESS else UNFINISHED)  # a skipped one stays skipped
    }
    left = set() if run.state in RUN_FINISHED else teardowns_left(connection, run, instances, becomes)
    changes = Changes()
    changes.teardowns = sorted({one.task_id for one in left})
    for target in dict.fromkeys(becomes.values()):
        moved = [one for one, to in becomes.items() if to is target and one not in left]
        changes += _move(connection, run, moved, target, reason=reason)
    if left:
        # Another timeout must not end it again, nor count as the reason.
        connection.exec_driver_sql(
            "update dag_run set requested_state = %s, timeout_at = case when %s then null else timeout_at end where id = %s",
            (state.value, reason is None, run.id),
        )
        # In a paused DAG, one of them may have been moved behind all others: it may continue now.
        connection.exec_driver_sql(
            f"update task_instance t set rank = {OWN_RANK} where t.id = any(%s) and t.state = 'scheduled'",
            ([one.id for one in left],),
        )
    else:
        connection.exec_driver_sql(
            """
            update dag_run set state = %(state)s, ended_at = coalesce(ended_at, clock_timestamp()), requested_state = null
             where id = %(id)s and state <> %(state)s
            """,
            {"id": run.id, "state": state.value},
        )
    return changes


def teardowns_left(connection: Connection, run: Run, instances: Sequence[Instance], becomes: Mapping[Instance, S]) -> set[Instance]:
    """The teardowns among `becomes` that are to run, because their setup succeeded."""
    try:
        dag = Versions().dag(connection, run.version_id)
    except UnreadableVersionError:
        return set()  # nothing of this version can run
    return _teardowns_of(dag, instances, becomes)


def _teardowns_of(dag: SerializedDag, instances: Sequence[Instance], becomes: Mapping[Instance, S]) -> set[Instance]:
    states: defaultdict[int, dict[int, S]] = defaultdict(dict)
    for one in instances:
        states[one.task_no][one.map_index] = one.state
    places = still_to_run(dag, states, {(one.task_no, one.map_index): to for one, to in becomes.items()})
    return {one for one in becomes if (one.task_no, one.map_index) in places}


def _mark_tasks(
    connection: Connection, key: int, tasks: Tasks, state: S, versions: Versions, *, clear_downstream: bool, dry_run: bool,
    seen: clear.Seen | None,
) -> list[Change]:  # fmt: skip
    run = clear.lock_run(connection, key) if clear_downstream else selection.lock_run(connection, key)
    if run is None:
        return []
    dag = versions.dag(connection, run.version_id)
    instances = selection.lock_instances(connection, run.id, lock=not dry_run)
    if seen is not None:
        seen.run(dag, instances)
    picked = _without_teardowns(dag, run, instances, selection.pick(dag, instances, tasks), state)
    changes = _move(connection, run, picked, state, dry_run=dry_run)
    if clear_downstream:
        marked = {one.id for one in picked}
        failed = [one for one in selection.below(dag, instances, picked) if one.state in FAILURES and one.id not in marked]
        again = selection.with_setups(dag, instances, failed)
        if dry_run:
            return changes + clear.planned(run, instances, again)
        cleared = clear.clear_instances(connection, run, dag, instances, again)
        if cleared and run.has_ended:
            clear.queue_again(connection, run, dag)
        changes += cleared
    return changes


def _without_teardowns(
    dag: SerializedDag, run: Run, instances: Sequence[Instance], picked: Sequence[Instance], state: S
) -> Sequence[Instance]:
    """`picked` without teardowns that are to run, and without their succeeded setups: these were picked with other tasks.

    If only instances of one task are picked, the request is about that task, which is then marked.
    """
    if run.state in RUN_FINISHED or len({one.task_id for one in picked}) < 2:
        return picked
    teardowns = [one for one in instances if one.state in UNFINISHED and dag.number.get(one.task_id) in dag.teardowns]
    left = _teardowns_of(dag, instances, dict.fromkeys([*picked, *teardowns], state))
    setups = {name for one in left for name in dag.tasks[one.task_no].setups}
    return [one for one in picked if one not in left and not (one.state is S.SUCCESS and one.task_id in setups)]


def _move(
    connection: Connection, run: Run, instances: Iterable[Instance], state: S, *, reason: str | None = None, dry_run: bool = False
) -> list[Change]:
    """Move `instances`, all of which are locked, to `state`, except those that have it or are removed."""
    moved = [one for one in instances if one.state not in {state, S.REMOVED}]
    moved = [one for one in moved if one.state is not S.SHUTDOWN or one.requested_state != state]
    if not dry_run:
        why = reason or f"marked {state}"
        moves.mark(connection, [one.id for one in moved if one.state not in STARTED], state, why)
        stop(connection, [one.id for one in moved if one.state in STARTED], becomes=state.value, reason=why)
    return [one.change(run, "shutdown" if one.state in STARTED else state.value) for one in moved]
