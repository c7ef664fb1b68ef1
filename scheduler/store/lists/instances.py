"""Lists of task instances and their tries, as the REST API shows them."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection

from scheduler.exceptions import NotFoundError
from scheduler.states import STARTED
from scheduler.store.lists.listing import Entries, Filters, Page, Row, Source, entries, first

OF_TASK = """
    t.id, r.dag_id, r.run_id, r.logical_date, r.run_after,
    r.version_id, v.number as version_number, v.created_at as version_created_at,
    t.task_id, t.map_index, t.task_no, t.map_label, t.max_tries, t.queue, t.pool, t.pool_slots, t.priority_weight
"""
COLUMNS = f"""
    {OF_TASK}, t.state, t.try_number, t.asked, t.worker, t.queued_by, t.scheduled_at, t.queued_at, t.started_at, t.ended_at,
    t.due_at, t.reason, p.host, p.pid,
    extract(epoch from coalesce(t.ended_at, case when t.state in {STARTED.sql} then clock_timestamp() end)
        - t.started_at)::float as duration,
    (select n.note from instance_note n where n.task_instance_id = t.id) as note,
    (select g.progress from task_progress g where g.task_instance_id = t.id and g.try_number = t.try_number) as progress
"""
SOURCE = Source(
    "task_instance t join dag_run r on r.id = t.dag_run_id",
    {"v": "join dag_version v on v.id = r.version_id", "p": "left join process p on p.id = t.worker"},
)
#: A try that another one followed, and the newest one.
TRIES = """
    select {of_task}, h.state, h.try_number, h.worker, h.queued_by, h.scheduled_at, h.queued_at, h.started_at, h.ended_at,
           h.reason, p.host, p.pid, extract(epoch from h.ended_at - h.started_at)::float as duration
      from (select task_instance_id, try_number, state, worker, queued_by, scheduled_at, queued_at, started_at, ended_at, reason
              from task_try where task_instance_id = %(id)s
             union all
            select id, try_number, state, worker, queued_by, scheduled_at, queued_at, started_at, ended_at, reason
              from task_instance where id = %(id)s and try_number > 0 and state is not null) h
      join task_instance t on t.id = h.task_instance_id
      join dag_run r on r.id = t.dag_run_id
      join dag_version v on v.id = r.version_id
      left join process p on p.id = h.worker
     order by h.try_number, h.ended_at nulls last
""".replace("{of_task}", OF_TASK)
OPERATOR = "(select e->>'operator' from jsonb_array_elements(v.data->'tasks') e where e->>'task_id' = t.task_id)"
DURATION = "extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at)"
ORDERS = {
    "id": "t.id", "state": "t.state", "duration": DURATION, "start_date": "t.started_at", "end_date": "t.ended_at",
    "map_index": "t.map_index", "try_number": "t.try_number", "logical_date": "r.logical_date", "run_after": "r.run_after",
    "data_interval_start": "r.data_interval_start", "data_interval_end": "r.data_interval_end",
    "rendered_map_index": "coalesce(t.map_label, t.map_index::text)", "task_id": "t.task_id", "task_display_name": "t.task_id",
    "dag_id": "r.dag_id", "run_id": "r.run_id", "dag_run_id": "r.run_id", "pool": "t.pool", "queue": "t.queue",
    "queued_when": "t.queued_at", "scheduled_when": "t.scheduled_at", "priority_weight": "t.priority_weight",
    "operator": OPERATOR, "operator_name": OPERATOR,
}  # fmt: skip
#: The filters of a list.
COLUMNS_BY_NAME = ORDERS | {
    "key": "t.id", "run_key": "t.dag_run_id", "version_number": "v.number",
    "updated_at": "coalesce(t.ended_at, t.started_at, t.queued_at, t.scheduled_at)",
}  # fmt: skip


def filters() -> Filters:
    """No condition yet."""
    return Filters(COLUMNS_BY_NAME)


def instances(connection: Connection, filters: Filters, page: Page) -> Entries:
    """One page of task instances, by default in the order of their creation."""
    return entries(connection, COLUMNS, SOURCE, filters, page, orders=ORDERS, default=("id",), key="t.id")


def instance(connection: Connection, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> Row:
    """One task instance. NotFoundError."""
    chosen = filters().equals("dag_id", dag_id).equals("run_id", run_id).equals("task_id", task_id)
    found = first(connection, COLUMNS, SOURCE, chosen.equals("map_index", map_index))
    if found is None:
        name = repr(task_id) if map_index < 0 else f"{task_id!r} of map index {map_index}"
        raise NotFoundError(f"Run {run_id!r} of DAG {dag_id!r} has no instance of task {name}.")
    return found


def exists(connection: Connection, dag_id: str, run_id: str, task_id: str) -> bool:
    """Whether the run has an instance of this task."""
    chosen = filters().equals("dag_id", dag_id).equals("run_id", run_id).equals("task_id", task_id)
    found = connection.exec_driver_sql(f"select 1 from {SOURCE.of(chosen.sql)} {chosen.sql} limit 1", chosen.parameters)
    return found.first() is not None


def mapped(connection: Connection, dag_id: str, run_id: str, task_id: str) -> int:
    """The number of instances of a mapped task; 0 for another task and for an unknown one."""
    found: int = connection.exec_driver_sql(
        "select count(*) from task_instance t join dag_run r on r.id = t.dag_run_id"
        " where r.dag_id = %s and r.run_id = %s and t.task_id = %s and t.map_index >= 0",
        (dag_id, run_id, task_id),
    ).scalar_one()
    return found


def indexes(connection: Connection, dag_id: str, run_id: str, task_id: str, map_index: int | None) -> list[int]:
    """The map indexes of the instances of a task; with a `map_index`, that one if it exists."""
    chosen = filters().equals("dag_id", dag_id).equals("run_id", run_id).equals("task_id", task_id).equals("map_index", map_index)
    rows = connection.exec_driver_sql(f"select t.map_index from {SOURCE} {chosen.sql} order by 1", chosen.parameters)
    return list(rows.scalars())


def by_keys(connection: Connection, keys: Collection[int]) -> list[Row]:
    """These task instances, by id."""
    if not keys:
        return []
    chosen = filters().one_of("key", list(keys))
    return entries(connection, COLUMNS, SOURCE, chosen, Page(limit=len(keys)), orders=ORDERS, default=("id",), key="t.id").rows


def keys_by_run(connection: Connection, filters: Filters) -> dict[int, list[int]]:
    """The numbers of all task instances that the filters select, by the number of their run, the oldest run first."""
    rows = connection.exec_driver_sql(
        f"select t.dag_run_id as run, array_agg(t.id) as keys from {SOURCE} {filters.sql} group by 1 order by 1", filters.parameters
    )
    return {row.run: row.keys for row in rows}


def keys_of(connection: Connection, changes: Collection[Any]) -> list[int]:
    """The task instances of these changes, see store/runs/selection.Change."""
    rows = connection.exec_driver_sql(
        """
        select t.id from unnest(%(runs)s::bigint[], %(tasks)s::text[], %(indexes)s::int[]) c (run, task_id, map_index)
          join task_instance t on t.dag_run_id = c.run and t.task_id = c.task_id and t.map_index = c.map_index
         order by t.id
        """,
        {
            "runs": [one.dag_run_id for one in changes],
            "tasks": [one.task_id for one in changes],
            "indexes": [one.map_index for one in changes],
        },
    )
    return list(rows.scalars())


def tries(connection: Connection, ti_id: int) -> list[Row]:
    """All tries of a task instance, the oldest first."""
    return [dict(row) for row in connection.exec_driver_sql(TRIES, {"id": ti_id}).mappings()]


def delete(connection: Connection, ti_id: int) -> bool:
    """Delete a task instance whose task its DAG no longer has; False if it is another one."""
    gone = connection.exec_driver_sql("delete from task_instance where id = %s and state = 'removed'", (ti_id,))
    return gone.rowcount == 1
