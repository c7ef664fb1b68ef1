"""Prepares mapped tasks for another expansion, because a task whose result they are mapped over runs again.

Such a task gets an additional undecided instance with map index -1, as before its first expansion. While it exists, the other
instances wait. Once the task can run, its instances are fitted to the new result: those in range stay or are restored, missing
ones are added, and those beyond are removed, with their tries and logs.
"""

from collections.abc import Collection, Iterable

from sqlalchemy import Connection

from scheduler.deciding import expansion
from scheduler.serialized.dag import SerializedDag
from scheduler.states import FINISHED, STARTED, TaskState
from scheduler.store.runs import integrity, selection
from scheduler.store.runs.new_instances import COMMON, COMMON_OF_INSTANCE
from scheduler.store.runs.selection import Instance

BEYOND = "there is nothing to map over at its index any more"


def tasks_to_expand_again(dag: SerializedDag, instances: Iterable[Instance], picked: Iterable[Instance]) -> set[str]:
    """Expanded tasks with an instance that will run, after a task whose result they are mapped over has run again."""
    chosen = {one.id for one in picked}
    runs_again = {one.task_id for one in instances if one.id in chosen or one.state not in FINISHED}
    is_to_run = {one.task_id for one in instances if one.map_index >= 0 and (one.id in chosen or one.state is TaskState.NONE)}
    return {
        task.task_id
        for task in dag.tasks
        if task.task_id in is_to_run and task.expand is not None and runs_again & expansion.sources(task.expand)
    }


def unexpand(connection: Connection, dag: SerializedDag, instances: Iterable[Instance], tasks: Collection[str]) -> None:
    """Mark these tasks for another expansion; `instances` are all task instances of the run, locked."""
    first: dict[str, Instance] = {}
    for one in instances:
        if one.task_id in tasks:
            first.setdefault(one.task_id, one)
    like = [one for one in first.values() if one.map_index != -1]
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
                "ids": [one.id for one in like],
                "retries": [dag.tasks[dag.number[one.task_id]].retries for one in like],
            },
        )


def expand_again(connection: Connection, dag: SerializedDag, dag_run_id: int, task_no: int, count: int) -> None:
    """Fit the instances of a task to `count`; with 0, the one with index -1 is skipped. The caller has the run locked."""
    own = selection.lock_instances(connection, dag_run_id, task_no)
    stand_in = next(one for one in own if one.map_index == -1)
    # Below -1: instances that an earlier version of Paceline stopped.
    out_of_range = [one for one in own if one.map_index >= count or one.map_index < -1]
    beyond = [one for one in out_of_range if one.state not in STARTED | {TaskState.REMOVED}]
    integrity.remove(connection, beyond, BEYOND)
    integrity.restore(connection, dag, [one for one in own if 0 <= one.map_index < count and one.state is TaskState.REMOVED])
    there = {one.map_index for one in own}
    integrity.grow(connection, dag, [(stand_in, index) for index in range(count) if index not in there])
    if count:
        connection.exec_driver_sql("delete from task_instance where id = %s and state is null", (stand_in.id,))
    else:
        connection.exec_driver_sql(
            "update task_instance set state = 'skipped', reason = 'there is nothing to map over', ended_at = clock_timestamp()"
            " where id = %s and state is null",
            (stand_in.id,),
        )
