"""Creates the task instances of a run from its DAG, in one insert, or updates them from another version of it."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from paceline.states import DELAYED, States, TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.db.rows import array_literal
from scheduler.store.queueing.limits import OWN_RANK

#: Added to the rank of task instances of a backfill, so that they rank below all others: a priority_weight has 32 bits.
BACKFILL_RANK = -(2**33)
#: The columns that all instances of a task have in common, and these of an instance `t`.
COMMON = "queue, pool, pool_slots, priority_weight, rank, notify, max_active_tis_per_dag, max_active_tis_per_dagrun"
COMMON_OF_INSTANCE = ", ".join(OWN_RANK if column == "rank" else f"t.{column}" for column in COMMON.split(", "))
#: The values of tasks `n` (see `_values`), with their pools `p` and the pools `c` of their clusters; below, COMMON from these.
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


def insert(
    connection: Connection, dag: SerializedDag, dag_run_id: int, task_nos: Collection[int], *, is_backfill: bool, default_queue: str
) -> None:
    """Insert undecided instances of these tasks, one for a mapped task until it is expanded. Existing ones stay."""
    connection.exec_driver_sql(
        f"""
        insert into task_instance (dag_run_id, task_no, task_id, max_tries, {COMMON})
        select %(run)s, n.task_no, n.task_id, n.max_tries, {COMMON_OF_TASK} from {TASKS} order by n.task_no
        on conflict do nothing
        """,
        _values(dag, dag_run_id, sorted(task_nos), is_backfill=is_backfill, default_queue=default_queue),
    )


def refresh(connection: Connection, dag: SerializedDag, dag_run_id: int, *, is_backfill: bool, default_queue: str) -> None:
    """Update queues, pools, limits and retries of the task instances that hold no slots yet."""
    connection.exec_driver_sql(
        f"""
        update task_instance t
           set ({COMMON}, max_tries) = ({COMMON_OF_TASK}, case when t.try_number = 0 then n.max_tries else t.max_tries end)
          from {TASKS} where t.dag_run_id = %(run)s and t.task_no = n.task_no and {REFRESHED.or_none("t.state")}
        """,
        _values(dag, dag_run_id, range(len(dag.tasks)), is_backfill=is_backfill, default_queue=default_queue),
    )


def wanted(dag: SerializedDag, logical_date: datetime | None, *, is_backfill: bool) -> list[int]:
    """The numbers of the tasks whose start_date and end_date include this date; all tasks for a backfill or without a date."""
    if is_backfill or logical_date is None:
        return list(range(len(dag.tasks)))
    return [no for no, task in enumerate(dag.tasks) if _includes(task, logical_date)]


def _values(
    dag: SerializedDag, dag_run_id: int, task_nos: Sequence[int], *, is_backfill: bool, default_queue: str
) -> dict[str, Any]:
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


def _includes(task: SerializedTask, moment: datetime) -> bool:
    return (task.start_date is None or datetime.fromisoformat(task.start_date) <= moment) and (
        task.end_date is None or moment <= datetime.fromisoformat(task.end_date)
    )
