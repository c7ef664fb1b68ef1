"""Delete: a run with everything that belongs to it, or a DAG with all its runs and versions."""

from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.exceptions import ConflictError, NotFoundError
from paceline.states import FINISHED, RUN_FINISHED, RUN_UNFINISHED, STARTED, TaskState
from scheduler.store.actions import mark
from scheduler.store.dags import bundle_versions
from scheduler.store.runs import deleted_runs, selection
from scheduler.store.runs.deleted_runs import DeletedRun


@dataclass(frozen=True, slots=True)
class DeletedDag:
    """A deleted DAG: its runs, and its file if that still exists. Then the DAG is created again, as a new one."""

    runs: tuple[DeletedRun, ...]
    file: str | None


def deletable_run(connection: Connection, dag_id: str, run_id: str) -> int:
    """Lock a run that can be deleted, and return its number.

    NotFoundError; ConflictError while a worker has some of its task instances, or a teardown has yet to run.
    """
    (key,) = selection.run_keys(connection, selection.Runs(dag_id=dag_id, run_id=run_id))
    _refuse_started(connection, [key], f"Run {run_id!r} of DAG {dag_id!r}", f"`paceline runs mark {dag_id} {run_id} failed`")
    _refuse_teardowns(connection, key)
    return key


def delete_run(connection: Connection, dag_id: str, run_id: str) -> DeletedRun:
    """Delete a run with all its rows; the caller deletes its files. The errors are those of `deletable_run`."""
    deleted = DeletedRun(dag_id, run_id, deletable_run(connection, dag_id, run_id))
    if connection.exec_driver_sql("delete from dag_run where id = %s", (deleted.key,)).rowcount:  # else it was deleted meanwhile
        deleted_runs.store(connection, [deleted], taken=True)
    return deleted


def delete_dag(connection: Connection, dag_id: str) -> DeletedDag:
    """Delete a DAG with its runs, backfills and versions. The caller deletes the files of the runs.

    NotFoundError; ConflictError while a worker has some of its tasks, or a teardown has yet to run.
    """
    # First, because the process that stores the DAGs of a file also locks the row of the file first.
    file = connection.exec_driver_sql(
        """
        update dag_file set next_parse_at = clock_timestamp()
         where path = (select file from dag where dag_id = %s and is_active and bundle is null) returning path
        """,
        (dag_id,),
    ).scalar_one_or_none()
    connection.exec_driver_sql("select 1 from dag_schedule where dag_id = %s for update", (dag_id,))
    keys = connection.exec_driver_sql("select id from dag_run where dag_id = %s order by id", (dag_id,)).scalars().all()
    _refuse_started(connection, list(keys), f"DAG {dag_id!r}", "`paceline runs mark DAG RUN failed`")
    unfinished = connection.exec_driver_sql(
        f"select id from dag_run where dag_id = %s and state in {RUN_UNFINISHED.sql} order by id", (dag_id,)
    )
    for key in unfinished.scalars().all():
        _refuse_teardowns(connection, key)
    # Creating a run locks its version, so none can be created after this. A run that changes its version is locked above.
    versions = connection.exec_driver_sql("select id from dag_version where dag_id = %s order by id for update", (dag_id,)).all()
    if not versions:
        raise NotFoundError(f"There is no DAG {dag_id!r}; `paceline dags list --all` lists all.")
    rows = connection.exec_driver_sql("delete from dag_run where dag_id = %s returning run_id, id", (dag_id,))
    runs = tuple(DeletedRun(dag_id, row.run_id, row.id) for row in rows)
    bundle_versions.parse_again(connection, dag_id)
    for table in ("backfill", "asset_waiting", "dag_schedule", "dag", "dag_version"):
        connection.exec_driver_sql(f"delete from {table} where dag_id = %s", (dag_id,))
    deleted_runs.store(connection, runs, taken=True)
    return DeletedDag(runs, file)


def _refuse_teardowns(connection: Connection, key: int) -> None:
    """ConflictError if a teardown of this locked run has yet to run, because its setup succeeded."""
    run = selection.lock_run(connection, key)
    if run is None or run.state in RUN_FINISHED:
        return
    instances = selection.lock_instances(connection, key)
    ended = {one: TaskState.SKIPPED for one in instances if one.state not in FINISHED}
    left = sorted({one.task_id for one in mark.teardowns_left(connection, run, instances, ended)})
    if left:
        raise ConflictError(
            f"Run {run.run_id!r} of DAG {run.dag_id!r} cannot be deleted before its teardowns have ended ({', '.join(left)}): mark"
            f" the run with `paceline runs mark {run.dag_id} {run.run_id} failed`, and wait for them."
        )


def _refuse_started(connection: Connection, runs: list[int], what: str, how: str) -> None:
    """ConflictError while workers have task instances of these runs. They are locked first, so that none can be claimed."""
    # Not `for update`: a report that has locked its task instance may still need the key of its run, to write a notice.
    connection.exec_driver_sql("select 1 from dag_run where id = any(%s) order by id for no key update", (runs,))
    connection.exec_driver_sql("select 1 from task_instance where dag_run_id = any(%s) order by id for update", (runs,))
    running = connection.exec_driver_sql(
        f"select count(*) from task_instance where dag_run_id = any(%s) and state in {STARTED.sql}", (runs,)
    ).scalar_one()
    if running:
        tasks = "1 task instance of it runs" if running == 1 else f"{running} task instances of it run"
        raise ConflictError(f"{what} cannot be deleted while {tasks}: stop them with {how}, then delete it.")
