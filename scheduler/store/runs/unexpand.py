"""Prepares mapped tasks for another expansion, because a task whose result they are mapped over runs again.

Such a task gets an additional undecided instance with map index -1, as before its first expansion. While it exists, the other
instances wait. Once the task can run, its instances are fitted to the new result: those in range stay or are restored, missing
ones are added, and those beyond are removed, with their tries and logs.
"""

from collections.abc import Collection, Iterable

from sqlalchemy import Connection

from paceline.states import FINISHED, STARTED, TaskState
from scheduler.deciding import expansion
from scheduler.serialized.dag import SerializedDag
from scheduler.store.runs import integrity, selection
from scheduler.store.runs.new_instances import COMMON, COMMON_OF_INSTANCE
from scheduler.store.runs.selection import Instance

BEYOND = "there is nothing to map over at its index any more"


def tasks_to_expand_again(dag: SerializedDag, instances: Iterable[Instance], picked: Iterable[Instance]) -> set[str]:
    """Expanded tasks with an instance that will run, after a task whose result they are mapped over has run again."""
    chosen = {ti.id for ti in picked}
    runs_again = {ti.task_id for ti in instances if ti.id in chosen or ti.state not in FINISHED}
    is_to_run = {ti.task_id for ti in instances if ti.map_index >= 0 and (ti.id in chosen or ti.state is TaskState.NONE)}
    return {
        task.task_id
        for task in dag.tasks
        if task.task_id in is_to_run and task.expand is not None and runs_again & expansion.sources(task.expand)
    }


def unexpand(connection: Connection, dag: SerializedDag, instances: Iterable[Instance], tasks: Collection[str]) -> None:
    """Mark these tasks for another expansion; `instances` are all task instances of the run, locked."""
    first: dict[str, Instance] = {}
    for ti in instances:
        if ti.task_id in tasks:
            first.setdefault(ti.task_id, ti)
    like = [ti for ti in first.values() if ti.map_index != -1]
    if like:
        # Without the map index, whose default is -1: the role of a worker, which can clear runs, may not insert it.
        connection.exec_driver_sql(
            f"""
            insert into task_instance (dag_run_id, task_no, task_id, max_tries, {COMMON})
            select t.dag_run_id, t.task_no, t.task_id, n.retries, {COMMON_OF_INSTANCE}
              from unnest(%(ids)s::bigint[], %(retries)s::int[]) n (id, retries) join task_instance t on t.id = n.id
             order by t.id
            """,
            {
                "ids": [ti.id for ti in like],
                "retries": [dag.tasks[dag.number[ti.task_id]].retries for ti in like],
            },
        )


def expand_again(connection: Connection, dag: SerializedDag, dag_run_id: int, task_no: int, count: int) -> None:
    """Fit the instances of a task to `count`; with 0, the one with index -1 is skipped. The caller has the run locked."""
    own = selection.lock_instances(connection, dag_run_id, task_no)
    stand_in = next(ti for ti in own if ti.map_index == -1)
    # Below -1: instances that an earlier version of Paceline stopped.
    out_of_range = [ti for ti in own if ti.map_index >= count or ti.map_index < -1]
    beyond = [ti for ti in out_of_range if ti.state not in STARTED | {TaskState.REMOVED}]
    integrity.remove(connection, beyond, BEYOND)
    integrity.restore(connection, dag, [ti for ti in own if 0 <= ti.map_index < count and ti.state is TaskState.REMOVED])
    there = {ti.map_index for ti in own}
    integrity.grow(connection, dag, [(stand_in, index) for index in range(count) if index not in there])
    if count:
        connection.exec_driver_sql("delete from task_instance where id = %s and state is null", (stand_in.id,))
    else:
        connection.exec_driver_sql(
            "update task_instance set state = 'skipped', reason = 'there is nothing to map over', ended_at = clock_timestamp()"
            " where id = %s and state is null",
            (stand_in.id,),
        )
