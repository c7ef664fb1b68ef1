"""Mapped tasks that are to be expanded anew: back to one instance of map index -1.

Instances that a worker still has cannot go before it has stopped them. One of them becomes the instance of index -1, so that
nothing is expanded before that; the others are parked at indexes below -1, and deleted once they have been stopped.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection

from scheduler.serialized import SerializedDag
from scheduler.states import STARTED, TaskState
from scheduler.store import integrity
from scheduler.store.selection import Instance


def tasks_to_collapse(dag: SerializedDag, instances: Iterable[Instance], picked: Iterable[Instance]) -> set[str]:
    """Mapped tasks all of whose instances are cleared together with a task whose result they map over."""
    chosen = {one.id for one in picked}
    names = {one.task_id for one in instances if one.id in chosen}
    whole = names - {one.task_id for one in instances if one.id not in chosen and one.state is not TaskState.REMOVED}
    return {
        task.task_id
        for task in dag.tasks
        if task.task_id in whole and task.expand is not None and names & integrity.mapped_over(task.expand)
    }


def collapse(connection: Connection, instances: Sequence[Instance]) -> list[Instance]:
    """Collapse tasks, of which these are all the instances, locked; those that were deleted."""
    by_task: defaultdict[str, list[Instance]] = defaultdict(list)
    for one in instances:
        by_task[one.task_id].append(one)
    deleted: list[Instance] = []
    index: dict[int, int] = {}
    for own in by_task.values():
        started = sorted((one for one in own if one.state in STARTED), key=lambda one: (one.map_index != -1, abs(one.map_index)))
        kept = started or own[:1]
        deleted += [one for one in own if one not in kept]
        index |= {one.id: -1 if place == 0 else min(one.map_index, -2 - one.map_index) for place, one in enumerate(kept)}
    if deleted:
        connection.exec_driver_sql("delete from task_instance where id = any(%s)", ([one.id for one in deleted],))
    if index:
        connection.exec_driver_sql(
            """
            update task_instance t set map_index = n.map_index
              from unnest(%(ids)s::bigint[], %(indexes)s::int[]) n (id, map_index)
             where t.id = n.id and t.map_index <> n.map_index
            """,
            {"ids": list(index), "indexes": list(index.values())},
        )
    return deleted


def gather(connection: Connection, dag_run_id: int, mapped: Collection[int]) -> None:
    """Delete what was parked of these tasks and has been stopped since; the caller holds the run."""
    parked = connection.exec_driver_sql(
        "select distinct task_no from task_instance where dag_run_id = %s and task_no = any(%s) and map_index < -1",
        (dag_run_id, list(mapped)),
    )
    tasks = list(parked.scalars())
    if not tasks:
        return
    parameters = (dag_run_id, tasks)
    connection.exec_driver_sql(
        "select 1 from task_instance where dag_run_id = %s and task_no = any(%s) and map_index < 0 order by id for no key update",
        parameters,
    )
    rows = connection.exec_driver_sql(
        "select id, task_no, task_id, map_index, state, asked from task_instance"
        " where dag_run_id = %s and task_no = any(%s) and map_index < 0 order by task_no, map_index desc",
        parameters,
    )
    collapse(
        connection,
        [
            Instance(id=row[0], task_no=row[1], task_id=row[2], map_index=row[3], state=TaskState(row[4] or "none"), asked=row[5])
            for row in rows
        ],
    )
