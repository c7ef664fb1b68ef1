"""Lists of task instances and their tries, as the REST API shows them."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from paceline.states import STARTED, TRY_FAILED
from scheduler.store.db import rows
from scheduler.store.read.bundles import BUNDLE_OF
from scheduler.store.read.listing import Filters, Listing, Row
from scheduler.store.runs.selection import Runs, Tasks

#: The version that a try executes: that of its run, or the one that the run had when the try started, see integrity.fit.
EXECUTED = """coalesce((select x.version_id from run_version x where x.dag_run_id = r.id and x.until > {try_}.started_at
                        order by x.until limit 1), r.version_id)"""
OF_TASK = f"""
    t.id, r.dag_id, r.run_id, r.logical_date, r.run_after,
    v.id as version_id, v.number as version_number, v.created_at as version_created_at, {BUNDLE_OF},
    t.task_id, t.map_index, t.task_no, t.map_label, t.max_tries, t.queue, t.pool, t.pool_slots, t.priority_weight
"""
#: Earlier tries in one list: the newest ones.
MOST_TRIES = 500
#: A try that another one followed, and the newest one.
TRIES = """
    select {of_task}, h.state, h.try_number, h.worker, h.queued_by, h.scheduled_at, h.queued_at, h.started_at, h.ended_at,
           h.reason, p.host, p.pid, extract(epoch from h.ended_at - h.started_at)::float as duration
      from ((select task_instance_id, try_number, state, worker, queued_by, scheduled_at, queued_at, started_at, ended_at, reason
               from task_try where task_instance_id = %(id)s order by try_number desc, ended_at desc limit {most})
             union all
            select id, try_number, state, worker, queued_by, scheduled_at, queued_at, started_at, ended_at, reason
              from task_instance where id = %(id)s and try_number > 0 and state is not null) h
      join task_instance t on t.id = h.task_instance_id
      join dag_run r on r.id = t.dag_run_id
      join dag_version v on v.id = {executed}
      left join process p on p.id = h.worker
     order by h.try_number, h.ended_at nulls last
""".format(of_task=OF_TASK, most=MOST_TRIES, executed=EXECUTED.format(try_="h"))
OPERATOR = "(select e->>'operator' from jsonb_array_elements(v.data->'tasks') e where e->>'task_id' = t.task_id)"
DURATION = "extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at)"
#: By default in the order of their creation.
INSTANCES = Listing(
    columns=f"""
        {OF_TASK}, t.state, t.try_number, t.requested_state, t.worker, t.queued_by, t.scheduled_at, t.queued_at, t.started_at,
        t.ended_at, t.due_at, t.reason, p.host, p.pid,
        extract(epoch from coalesce(t.ended_at, case when t.state in {STARTED.sql} then clock_timestamp() end)
            - t.started_at)::float as duration,
        (select n.note from instance_note n where n.task_instance_id = t.id) as note,
        (select g.progress from task_progress g where g.task_instance_id = t.id and g.try_number = t.try_number) as progress
    """,
    tables="task_instance t",
    joins={
        "r": "join dag_run r on r.id = t.dag_run_id", "v": f"join dag_version v on v.id = {EXECUTED.format(try_='t')}",
        "p": "left join process p on p.id = t.worker",
    },
    orders={
        "id": "t.id", "task_no": "t.task_no", "state": "t.state", "duration": DURATION, "start_date": "t.started_at",
        "end_date": "t.ended_at",
        "map_index": "t.map_index", "try_number": "t.try_number", "logical_date": "r.logical_date", "run_after": "r.run_after",
        "data_interval_start": "r.data_interval_start", "data_interval_end": "r.data_interval_end",
        "rendered_map_index": "coalesce(t.map_label, t.map_index::text)", "task_id": "t.task_id",
        "task_display_name": "t.task_id", "dag_id": "r.dag_id", "run_id": "r.run_id", "dag_run_id": "r.run_id",
        "pool": "t.pool", "queue": "t.queue", "queued_when": "t.queued_at", "scheduled_when": "t.scheduled_at",
        "priority_weight": "t.priority_weight", "operator": OPERATOR, "operator_name": OPERATOR,
    },
    filtered={
        "run_key": "t.dag_run_id", "version_number": "v.number",
        "updated_at": "coalesce(t.ended_at, t.started_at, t.queued_at, t.scheduled_at)",
    },
    default_order=("id",),
    key="t.id",
)  # fmt: skip


def of_task(dag_id: str, run_id: str, task_id: str) -> Filters:
    """The instances of a task of a run."""
    return INSTANCES.filters().equals("dag_id", dag_id).equals("run_id", run_id).equals("task_id", task_id)


def instance(connection: Connection, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Row:
    """One task instance. NotFoundError."""
    name = repr(task_id) if map_index < 0 else f"{task_id!r} of map index {map_index}"
    missing = f"Run {run_id!r} of DAG {dag_id!r} has no instance of task {name}."
    return INSTANCES.one(connection, of_task(dag_id, run_id, task_id).equals("map_index", map_index), missing)


def exists(connection: Connection, dag_id: str, run_id: str, task_id: str) -> bool:
    """Whether the run has an instance of this task."""
    chosen = of_task(dag_id, run_id, task_id)
    found = connection.exec_driver_sql(f"select 1 from {INSTANCES.source_for(chosen.sql)} {chosen.sql} limit 1", chosen.parameters)
    return found.first() is not None


#: Different errors of a mapped task in one answer.
MOST_ERRORS = 20


def mapped_states(connection: Connection, dag_id: str, run_id: str, task_id: str) -> dict[str, int]:
    """How many instances of a mapped task are in each state; empty for another task and for an unknown one."""
    chosen = of_task(dag_id, run_id, task_id).between("map_index", {"gte": 0})
    found = connection.exec_driver_sql(
        f"select coalesce(t.state, 'none') as state, count(*) from {INSTANCES.source_for(chosen.sql)} {chosen.sql} group by 1",
        chosen.parameters,
    )
    return {row["state"]: row["count"] for row in rows.dicts(found)}


def mapped_errors(connection: Connection, dag_id: str, run_id: str, task_id: str) -> list[Row]:
    """The reasons of the failed instances of a mapped task, the most frequent ones first, with the first index of each."""
    chosen = of_task(dag_id, run_id, task_id).between("map_index", {"gte": 0})
    chosen.where(f"t.reason is not null and t.state in {TRY_FAILED.sql}")
    return rows.dicts(
        connection.exec_driver_sql(
            "select t.reason, t.state, count(*) as count, min(t.map_index) as map_index"
            f" from {INSTANCES.source_for(chosen.sql)} {chosen.sql} group by 1, 2 order by 3 desc, 4 limit {MOST_ERRORS}",
            chosen.parameters,
        )
    )


def indexes(connection: Connection, dag_id: str, run_id: str, task_id: str, map_index: int | None) -> list[int]:
    """The map indexes of the instances of a task; with a `map_index`, that one if it exists."""
    chosen = of_task(dag_id, run_id, task_id).equals("map_index", map_index)
    found = connection.exec_driver_sql(
        f"select t.map_index from {INSTANCES.source_for(chosen.sql)} {chosen.sql} order by 1", chosen.parameters
    )
    return list(found.scalars())


def keys_by_run(connection: Connection, filters: Filters) -> dict[int, list[int]]:
    """The numbers of all task instances that the filters select, by the number of their run, the oldest run first."""
    found = connection.exec_driver_sql(
        f"select t.dag_run_id as run, array_agg(t.id) as keys from {INSTANCES.source} {filters.sql} group by 1 order by 1",
        filters.parameters,
    )
    return {row.run: row.keys for row in found}


def named(connection: Connection, runs: Runs, tasks: Tasks) -> list[int]:
    """The numbers of the instances of these tasks in the run itself, without those around it. NotFoundError if there is none."""
    filters = INSTANCES.filters().equals("dag_id", runs.dag_id).equals("run_id", runs.run_id)
    filters.one_of("task_id", list(map(str, tasks.task_ids))).equals("map_index", tasks.map_index)
    found = [key for keys in keys_by_run(connection, filters).values() for key in keys]
    if not found:
        raise NotFoundError(f"Run {runs.run_id!r} of DAG {runs.dag_id!r} has no such task instance.")
    return found


def keys_of(connection: Connection, changes: Collection[Any]) -> list[int]:
    """The task instances of these changes, see store/runs/selection.Change."""
    found = connection.exec_driver_sql(
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
    return list(found.scalars())


def tries(connection: Connection, ti_id: int) -> list[Row]:
    """The tries of a task instance, the oldest first: the newest MOST_TRIES, and the current one."""
    return rows.dicts(connection.exec_driver_sql(TRIES, {"id": ti_id}))
