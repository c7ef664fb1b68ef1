"""Clear: resets decided or finished task instances, so that they are decided and run again.

A running one is stopped by its worker first (shutdown); any other becomes undecided at once. The ended try is kept in
task_try. A run that had ended is queued again.
"""

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection

from paceline.exceptions import ConflictError
from paceline.states import NOT_CLEARABLE, RUN_FINISHED, STARTED
from paceline.states import TaskState as S
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Core
from scheduler.store.dags.bundles import DAGS_FOLDER
from scheduler.store.dags.dags import AFTER, ORDER
from scheduler.store.dags.versions import Versions
from scheduler.store.db import fencing
from scheduler.store.db.fencing import Writer
from scheduler.store.moves import clear as moves
from scheduler.store.moves import reset
from scheduler.store.moves.stop import stop
from scheduler.store.queueing.limits import MOST_RUNS, SHARES_RUNS
from scheduler.store.runs import deadlines, integrity, selection
from scheduler.store.runs.selection import Change, Changes, Instance, Run, Runs, Tasks
from scheduler.store.tables import scratch

#: The newest version of a DAG, and whether the DAGs folder is its bundle.
_NEWEST = """
    select d.version_id, coalesce(b.bundle = %s, false)
      from dag d left join dag_version v on v.id = d.version_id left join bundle_version b on b.id = v.bundle_version_id
     where d.dag_id = %s
"""
_NUMBERS = "select (select number from dag_version where id = %s), (select number from dag_version where id = %s)"


def clear(
    connection: Connection, runs: Runs, tasks: Tasks, *, core: Core, latest: bool | None = None, dry_run: bool = False,
    writer: Writer | None = None, prevent_running: bool = False,
) -> Changes:  # fmt: skip
    """Clear these task instances of these runs: of all, or, after an error, of none. Returns the changes.

    Runs without the tasks are passed over; NotFoundError for a task or map index that none of them has. `latest` switches the
    runs to the newest version of their DAG; with None, the DAG, then the settings decide, and then whether that version is of
    the DAGs folder: who edits a file there and clears the failed task expects the edit. The caller undoes a dry run.
    `writer` is the try of a task that clears; StaleTryError if it is not the current one. With `prevent_running`,
    ConflictError if a task instance to clear is running.
    """
    versions = Versions()

    def one(key: int, seen: Seen) -> list[Change]:
        run = lock_run(connection, key)
        return (
            [] if run is None else clear_locked(connection, run, tasks, core, versions, latest=latest, dry_run=dry_run, seen=seen)
        )

    changes = in_each_run(connection, runs, tasks, one, versions, dry_run=dry_run)
    if prevent_running and any(change.state in STARTED for change in changes):
        raise ConflictError("A task instance to clear is running: wait for its end, or leave out prevent_running_task.")
    fencing.lock(connection, writer)
    return changes


def in_each_run(
    connection: Connection, runs: Runs, tasks: Tasks, change: Callable[[int, "Seen"], list[Change]], versions: Versions, *,
    dry_run: bool,
) -> Changes:  # fmt: skip
    """The changes of `change` for each selected run, in one transaction.

    It reports to `Seen` what the run has of the requested tasks. NotFoundError for what no run has; but a task of the newest
    version that is in none of the runs of a range is no error.
    """
    keys = selection.run_keys(connection, runs)
    if len(keys) > 1:
        connection.exec_driver_sql("select 1 from dag_schedule where dag_id = %s for share", (runs.dag_id,))
        selection.lock_all(connection, keys, with_instances=not dry_run)
    seen = Seen(tasks)
    changes = Changes(one for key in keys for one in change(key, seen))
    changes.passed_over, changes.moved = seen.passed_over, seen.moved
    missing = selection.entries(tasks) - seen.found
    if missing:
        newest = connection.exec_driver_sql("select version_id from dag where dag_id = %s", (runs.dag_id,)).scalar_one_or_none()
        of_newest = versions.dag(connection, newest).number.keys() if newest is not None else set()
        is_range = runs.run_id is None or runs.past or runs.future
        for name, index in sorted(missing, key=str):
            if not is_range or name not in of_newest or (index is not None and keys):
                raise selection.not_found(runs.dag_id, (name, index), of_newest | seen.known)
    return changes


class Seen:
    """What the runs of a request have of the tasks that it names."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.found: set[selection.Entry] = set()
        self.known: set[str] = set()
        #: The runs that have none of them.
        self.passed_over = 0
        #: By run ID: the number of the version that it had, and of the one with which it continues.
        self.moved: dict[str, tuple[int, int]] = {}

    def run(self, dag: SerializedDag, instances: Sequence[Instance]) -> None:
        """Add a run."""
        found = selection.found(dag, instances, self._tasks)
        self.passed_over += bool(self._tasks.task_ids) and not found
        self.found |= found
        self.known |= {ti.task_id for ti in instances} | dag.number.keys()


def clear_keys(
    connection: Connection, key: int, keys: Collection[int], core: Core, versions: Versions, *, latest: bool | None, dry_run: bool
) -> list[Change]:
    """Clear task instances of a run by their numbers. A run that is deleted meanwhile has none."""
    run = lock_run(connection, key)
    tasks = Tasks(keys=frozenset(keys))
    return [] if run is None else clear_locked(connection, run, tasks, core, versions, latest=latest, dry_run=dry_run)


def clear_locked(
    connection: Connection, run: Run, tasks: Tasks, core: Core, versions: Versions, *, latest: bool | None = None,
    dry_run: bool = False, seen: Seen | None = None,
) -> list[Change]:  # fmt: skip
    """Clear these task instances of a run that `lock_run` locked; a run that had ended is queued again. Returns the changes.

    A dry run writes nothing, unless the run switches to another version: then the caller must roll back.
    """
    version_id, switched = _version(connection, run, versions, latest, core)
    dag = versions.dag(connection, version_id)
    changes = integrity.fit(connection, run, dag, version_id, default_queue=core.default_queue) if switched else []
    writes = switched or not dry_run
    instances = selection.lock_instances(connection, run.id, lock=writes)
    if seen is not None:
        seen.run(dag, instances)
        if switched:
            old, new = connection.exec_driver_sql(_NUMBERS, (run.version_id, version_id)).one()
            seen.moved[run.run_id] = old, new
    picked = selection.with_setups(dag, instances, selection.pick(dag, instances, tasks))
    if not writes:
        return planned(run, instances, picked)
    cleared = clear_instances(connection, run, dag, instances, picked)
    if run.has_ended and (cleared or changes):
        queue_again(connection, run, dag)
    return _merged(changes, cleared)


def clear_instances(
    connection: Connection, run: Run, dag: SerializedDag, instances: Sequence[Instance], picked: Collection[Instance]
) -> list[Change]:
    """Clear `picked` of the `instances` of a run, all of which are locked. Returns the changes."""
    integrity.unexpand(connection, dag, instances, picked)
    cleared, stopped = _split(picked)
    if picked:
        reset.note_results(connection, [one.id for one in picked])
    moves.clear(connection, [one.id for one in cleared], _retries(dag, cleared))
    stop(connection, [one.id for one in stopped], becomes="none", reason="cleared", retries=_retries(dag, stopped))
    return planned(run, instances, picked)


def planned(run: Run, instances: Sequence[Instance], picked: Collection[Instance]) -> list[Change]:
    """The changes if `picked` is cleared, in the order of `instances`."""
    cleared, stopped = _split(picked)
    becomes = {one.id: "none" for one in cleared} | {one.id: "shutdown" for one in stopped}
    return [one.change(run, becomes[one.id]) for one in instances if one.id in becomes]


def _split(picked: Collection[Instance]) -> tuple[list[Instance], list[Instance]]:
    """The changes that clear at once, and the ones whose worker stops the task first."""
    stopped = [one for one in picked if one.state is S.RUNNING or (one.state is S.SHUTDOWN and one.requested_state != "none")]
    return [one for one in picked if one.state is not S.NONE and one.state not in NOT_CLEARABLE], stopped


def queue_again(connection: Connection, run: Run, dag: SerializedDag) -> None:
    """success or failed, or only with teardowns left -> queued: promote starts it again within max_active_runs."""
    connection.exec_driver_sql(
        f"""
        update dag_run
           set state = 'queued', queued_at = clock_timestamp(), started_at = null, ended_at = null, examined_at = null,
               timeout_at = null, requested_state = null, clear_number = clear_number + 1
         where id = %s and (state in {RUN_FINISHED.sql} or requested_state is not null)
        """,
        (run.id,),
    )
    deadlines.replan(connection, run.id)
    past = [task.task_id for task in dag.tasks if task.depends_on_past]
    if past:
        _make_way(connection, run, past)


def queue_run(connection: Connection, key: int) -> None:
    """Queue a run that has ended. Task instances that have ended stay so: only those that have not will run."""
    run = lock_run(connection, key)
    if run is not None and run.has_ended:
        queue_again(connection, run, Versions().dag(connection, run.version_id))


def lock_run(connection: Connection, key: int) -> Run | None:
    """Lock the schedule of a run's DAG, so that no run of the DAG is started meanwhile, and then the run.

    A shared lock is enough, because clearing starts no run; so several runs of a DAG can be cleared at the same time.
    """
    connection.exec_driver_sql(
        "select 1 from dag_schedule where dag_id = (select dag_id from dag_run where id = %s) for share", (key,)
    )
    run = selection.lock_run(connection, key)
    if run is not None and run.is_reproduction:
        _refuse_without_tables(connection, run)
    return run


def _refuse_without_tables(connection: Connection, run: Run) -> None:
    """Its tasks would read what the original has read instead of what those before them have written."""
    if not scratch.reproduction(connection, run.id).has_tables:
        raise ConflictError(f"The tables of {run.run_id} were deleted, so it cannot run again: reproduce its original again.")


def _version(connection: Connection, run: Run, versions: Versions, latest: bool | None, core: Core) -> tuple[int, bool]:
    """The version with which the run continues, and whether that is a change."""
    if run.is_reproduction:  # of the code with which its original ran
        return run.version_id, False
    newest, of_folder = connection.exec_driver_sql(_NEWEST, (DAGS_FOLDER, run.dag_id)).one_or_none() or (None, False)
    if newest is None or newest == run.version_id:
        if latest and newest is None:
            raise ConflictError(f"DAG {run.dag_id!r} has no newest version any more: clear the run without --latest.")
        return run.version_id, False
    dag = versions.dag(connection, newest)
    for given in (dag.rerun_with_latest_version, core.rerun_with_latest_version, of_folder):
        latest = given if latest is None else latest
    wanted = newest if latest or dag.disable_bundle_versioning else run.version_id
    return wanted, wanted != run.version_id


def _make_way(connection: Connection, run: Run, past: Sequence[str]) -> None:
    """If max_active_runs is reached, queue the newest running run that now waits for this one.

    Otherwise neither could continue: the later run waits for tasks of this one, and this one waits to be started.
    """
    connection.exec_driver_sql(
        f"""
        with place as (
            select {MOST_RUNS} as places, r.dag_id, r.backfill_id, r.logical_date, r.run_after, r.id
              from dag_run r join dag d on d.dag_id = r.dag_id join dag_version v on v.id = d.version_id
              left join backfill b on b.id = r.backfill_id
             where r.id = %(run)s
        ), running as (
            select o.id, {ORDER.format("o")} as at, count(*) over () >= r.places as none_free, {AFTER.format("o", "r")} as is_later
              from dag_run o join place r on {SHARES_RUNS}
             where o.state = 'running'
        ), yielding as (
            select id from running
             where none_free and is_later
               and exists (select 1 from task_instance t
                            where t.dag_run_id = running.id and t.state is null and t.task_id = any(%(past)s))
             order by at desc, id desc limit 1
        ), held as (
            select r.id from dag_run r join yielding using (id) for no key update of r
        )
        update dag_run r set state = 'queued', started_at = null, timeout_at = null, examined_at = null
          from held where r.id = held.id and r.state = 'running'
        """,
        {"run": run.id, "past": list(past)},
    )


def _retries(dag: SerializedDag, instances: Sequence[Instance]) -> list[int]:
    return [dag.tasks[dag.number[one.task_id]].retries if one.task_id in dag.number else 0 for one in instances]


def _merged(fitted: Sequence[Change], cleared: Sequence[Change]) -> list[Change]:
    """Each task instance once, with the change by clearing if there is one."""
    again = {(change.run_id, change.task_id, change.map_index) for change in cleared}
    return [*(change for change in fitted if (change.run_id, change.task_id, change.map_index) not in again), *cleared]
