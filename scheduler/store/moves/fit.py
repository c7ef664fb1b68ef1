"""none, waiting or ended -> removed, and removed -> none: the task instances of a run follow the version of its DAG.

It also makes them, undecided; store/runs/integrity.py decides which.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from paceline.states import DELAYED, STARTED, States, TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.db import prepared
from scheduler.store.db.rows import array_literal
from scheduler.store.moves.reset import KEEP_TRY, NO_RESULT, NO_TRY, forget_triggers, note_results
from scheduler.store.queueing.limits import OWN_RANK

#: Added to the rank of task instances of a backfill, so that they rank below all others: a priority_weight has 32 bits.
BACKFILL_RANK = -(2**33)
#: The columns that all instances of a task have in common, and these of an instance `t`.
COMMON = "queue, pool, pool_slots, priority_weight, rank, notify, max_active_tis_per_dag, max_active_tis_per_dagrun"
COMMON_OF_INSTANCE = ", ".join(OWN_RANK if column == "rank" else f"t.{column}" for column in COMMON.split(", "))
#: The values of tasks `n` (see `values`), with their pools `p` and the pools `c` of their clusters; below, COMMON from these.
TASKS = """
    unnest(%(task_no)s::int[], %(task_id)s::text[], %(max_tries)s::int[], %(queue)s::text[], %(pool)s::text[],
           %(pool_slots)s::int[], %(priority_weight)s::int[], %(notify)s::text[], %(per_dag)s::int[], %(per_dagrun)s::int[],
           %(cluster)s::text[])
      n (task_no, task_id, max_tries, queue, pool, pool_slots, priority_weight, notify, per_dag, per_dagrun, cluster)
      left join pool c on c.name = n.cluster
      left join pool p on p.name = coalesce(c.name, n.pool)
"""
COMMON_OF_TASK = """
    coalesce(n.queue, p.queue, %(default_queue)s), coalesce(c.name, n.pool), n.pool_slots, n.priority_weight,
    n.priority_weight + %(rank)s, string_to_array(n.notify, ' '), n.per_dag, n.per_dagrun
"""
#: A task instance in one of these holds no slots yet, so a new DAG version may still change its queue, pool and limits. The same
#: applies to NONE.
REFRESHED = States(DELAYED | {TaskState.SCHEDULED})
INSERT = prepared.of(
    "insert_task_instances",
    {
        "run": "bigint", "default_queue": "text", "rank": "bigint", "task_no": "int[]", "task_id": "text[]", "max_tries": "int[]",
        "queue": "text[]", "pool": "text[]", "pool_slots": "int[]", "priority_weight": "int[]", "notify": "text[]",
        "per_dag": "int[]", "per_dagrun": "int[]", "cluster": "text[]",
    },
    f"""
    insert into task_instance (dag_run_id, task_no, task_id, max_tries, {COMMON})
    select %(run)s, n.task_no, n.task_id, n.max_tries, {COMMON_OF_TASK} from {TASKS} order by n.task_no
    on conflict do nothing
    """,
)  # fmt: skip
REMOVED_TRY = KEEP_TRY.format(state="'removed'", ended_at="t.ended_at")


def insert(
    connection: Connection, dag: SerializedDag, dag_run_id: int, task_nos: Collection[int], *, is_backfill: bool, default_queue: str
) -> None:
    """Insert undecided instances of these tasks, one for a mapped task until it is expanded. Existing ones stay."""
    prepared.execute(connection, INSERT, values(dag, dag_run_id, task_nos, is_backfill=is_backfill, default_queue=default_queue))


def refresh(connection: Connection, dag: SerializedDag, dag_run_id: int, *, is_backfill: bool, default_queue: str) -> None:
    """Update queues, pools, limits and retries of the task instances that hold no slots yet."""
    connection.exec_driver_sql(
        f"""
        update task_instance t
           set ({COMMON}, max_tries) = ({COMMON_OF_TASK}, case when t.try_number = 0 then n.max_tries else t.max_tries end)
          from {TASKS} where t.dag_run_id = %(run)s and t.task_no = n.task_no and {REFRESHED.or_none("t.state")}
        """,
        values(dag, dag_run_id, range(len(dag.tasks)), is_backfill=is_backfill, default_queue=default_queue),
    )


def values(
    dag: SerializedDag, dag_run_id: int, task_nos: Collection[int], *, is_backfill: bool, default_queue: str
) -> dict[str, Any]:
    """The values of INSERT for these tasks."""
    task_nos = sorted(task_nos)
    tasks = [dag.tasks[no] for no in task_nos]
    return {
        "run": dag_run_id,
        "default_queue": default_queue,
        "rank": BACKFILL_RANK if is_backfill else 0,
        "task_no": array_literal(task_nos),
        "task_id": array_literal(task.task_id for task in tasks),
        "max_tries": array_literal(task.retries for task in tasks),
        "queue": array_literal(task.queue for task in tasks),
        "pool": array_literal(task.pool for task in tasks),
        "pool_slots": array_literal(task.pool_slots for task in tasks),
        "priority_weight": array_literal(task.priority_weight for task in tasks),
        "notify": array_literal(" ".join(task.notify) or None for task in tasks),
        "per_dag": array_literal(task.max_active_tis_per_dag for task in tasks),
        "per_dagrun": array_literal(task.max_active_tis_per_dagrun for task in tasks),
        "cluster": array_literal(task.cluster for task in tasks),
    }


def remove(connection: Connection, ti_ids: Sequence[int], reason: str) -> None:
    """none, waiting or ended -> removed; the XComs are deleted, so that no mapped task counts them."""
    if not ti_ids:
        return
    forget_triggers(connection, ti_ids)
    connection.exec_driver_sql("delete from xcom where task_instance_id = any(%s)", (list(ti_ids),))
    note_results(connection, ti_ids)
    connection.exec_driver_sql(
        f"""
        update task_instance
           set state = 'removed', reason = %(reason)s, ended_at = coalesce(ended_at, clock_timestamp()), {NO_RESULT}
         where id = any(%(ids)s) and (state is null or state not in {STARTED.sql})
        """,
        {"ids": list(ti_ids), "reason": reason},
    )


def restore(connection: Connection, ti_ids: Sequence[int], retries: Sequence[int]) -> None:
    """removed -> none: the task came back, with so many retries. The earlier try is kept in task_try."""
    if not ti_ids:
        return
    connection.exec_driver_sql(
        f"{REMOVED_TRY} where t.id = any(%s) and t.state = 'removed' and t.started_at is not null order by t.id", (list(ti_ids),)
    )
    connection.exec_driver_sql(
        f"""
        update task_instance t
           set state = null, reason = 'the task came back', rank = {OWN_RANK}, max_tries = t.try_number + n.retries, {NO_TRY}
          from unnest(%(ids)s::bigint[], %(retries)s::int[]) n (id, retries)
         where t.id = n.id and t.state = 'removed'
        """,
        {"ids": list(ti_ids), "retries": list(retries)},
    )


def delete(connection: Connection, ti_ids: Sequence[int]) -> None:
    """Delete task instances that no worker has: their task is not mapped any more."""
    if ti_ids:
        connection.exec_driver_sql("delete from task_instance where id = any(%s)", (list(ti_ids),))


def renumber(connection: Connection, dag_run_id: int, numbers: Mapping[int, int], unmapped: Sequence[int]) -> None:
    """Give tasks of a run their new numbers, by the old ones, and the task instances `unmapped` the map index -1.

    Temporary negative numbers avoid conflicts with the unique key. The SLAs of tasks are renumbered too.
    """
    moves = {"run": dag_run_id, "old": list(numbers), "new": [-1 - no for no in numbers.values()]}
    for table, of_task in (("task_instance", "true"), ("deadline", "t.kind = 'sla'")) if numbers else ():
        connection.exec_driver_sql(
            f"update {table} t set task_no = n.new from unnest(%(old)s::int[], %(new)s::int[]) n (old, new)"
            f" where t.dag_run_id = %(run)s and t.task_no = n.old and {of_task}",
            moves,
        )
        connection.exec_driver_sql(
            f"update {table} t set task_no = -1 - task_no where dag_run_id = %(run)s and task_no < 0 and {of_task}", moves
        )
    if unmapped:
        connection.exec_driver_sql(
            "update task_instance set map_index = -1, map_label = null where id = any(%s)", (list(unmapped),)
        )
