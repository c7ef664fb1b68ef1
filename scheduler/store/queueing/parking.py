"""Task instances that wait only for a limit of their task, parked behind all others of their pool until it is free.

A limit of a task is max_active_tis_per_dag or max_active_tis_per_dagrun: workers pass no slots on to such a task instance, so in
front of the line it would stop them for all others. Those of a paused DAG are parked too, see capacity.park.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.states import RUN_UNFINISHED
from scheduler.deciding.limits import TASK, TASK_IN_RUN, Place
from scheduler.store.db import rows
from scheduler.store.queueing.capacity import HEAD, MAY_CONTINUE, PARK_AT_ONCE, TASK_NOT_FULL, Full
from scheduler.store.queueing.limits import COUNTING, IN_LINE, LOWEST_RANK, PARKED

HAS_LIMIT = f"({COUNTING[TASK].has} or {COUNTING[TASK_IN_RUN].has})"
#: A parked task instance `t` of the run `r` that is not parked because its DAG, with the schedule `s`, is paused.
IS_PARKED = f"t.state = 'scheduled' and t.rank <= {LOWEST_RANK}"
OF_CONTINUING_RUNS = f"""join dag_run r on r.id = t.dag_run_id and r.state in {RUN_UNFINISHED.sql}
            join dag_schedule s on s.dag_id = r.dag_id and {MAY_CONTINUE}"""
#: Whether there is one, see store/upkeep/pending_work.
PENDING = f"""exists (
    select from pool p join task_instance t on t.pool = p.name and {IS_PARKED} and {HAS_LIMIT} {OF_CONTINUING_RUNS})"""


@dataclass(frozen=True, slots=True)
class ParkedTask:
    """A task with parked instances in a pool, and its limits."""

    pool: str
    dag_id: str
    task_id: str
    task_limit: int | None
    task_in_run_limit: int | None

    def free(self, active: Mapping[Place, int]) -> int:
        """How many more may be active, at least in one run."""
        if self.task_limit is None:
            return self.task_in_run_limit or 0
        return self.task_limit - active.get((TASK, (self.dag_id, self.task_id)), 0)


def parked(connection: Connection) -> list[ParkedTask]:
    """The tasks with parked instances. This reads all of these, so the queue service does it once a second."""
    found = connection.exec_driver_sql(
        f"""
        select t.pool, r.dag_id, t.task_id, min(t.max_active_tis_per_dag) as task_limit,
               min(t.max_active_tis_per_dagrun) as task_in_run_limit
          from pool p join task_instance t on t.pool = p.name and {IS_PARKED} and {HAS_LIMIT} {OF_CONTINUING_RUNS}
         group by 1, 2, 3
        """
    )
    return rows.of_result(ParkedTask, found)


def park(connection: Connection, pools: Collection[str], full: Full) -> list[ParkedTask]:
    """Park the task instances of those tasks that are among the first in line for these pools behind a full limit of the task.

    The caller has locked the pools. Returns the tasks.
    """
    found = connection.exec_driver_sql(
        f"""
        with heads as materialized (
            select distinct t.pool, r.dag_id, t.task_id
              from unnest(%(pools)s::text[]) p (name)
             cross join lateral (
                   select t.* from task_instance t
                    where t.pool = p.name and {IN_LINE} order by t.rank desc, t.id limit {HEAD}) t
              join dag_run r on r.id = t.dag_run_id
             where not ({TASK_NOT_FULL})
        ), chosen as (
            select t.id, r.dag_id
              from heads h
              join task_instance t on t.pool = h.pool and t.task_id = h.task_id and {IN_LINE}
              join dag_run r on r.id = t.dag_run_id and r.dag_id = h.dag_id
             where not ({TASK_NOT_FULL})
             order by t.id limit {PARK_AT_ONCE} for no key update of t skip locked
        ), parked as (
            update task_instance t set rank = t.rank - {PARKED} from chosen c where t.id = c.id and {IN_LINE}
            returning t.pool, c.dag_id, t.task_id, t.max_active_tis_per_dag, t.max_active_tis_per_dagrun
        )
        select pool, dag_id, task_id, min(max_active_tis_per_dag) as task_limit,
               min(max_active_tis_per_dagrun) as task_in_run_limit
          from parked group by 1, 2, 3
        """,
        {"pools": list(pools), **full.keys()},
    )
    return rows.of_result(ParkedTask, found)


def unpark(connection: Connection, tasks: Mapping[ParkedTask, int], full: Full) -> None:
    """Put so many instances of these tasks, none of them behind a full limit of the task, back into the line."""
    connection.exec_driver_sql(
        f"""
        with free as (
            select u.id
              from unnest(%(names)s::text[], %(dag_ids)s::text[], %(task_ids)s::text[], %(free)s::int[])
                   n (pool, dag_id, task_id, free)
             cross join lateral (
                   select t.id from task_instance t {OF_CONTINUING_RUNS}
                    where t.pool = n.pool and {IS_PARKED} and t.task_id = n.task_id and r.dag_id = n.dag_id and {TASK_NOT_FULL}
                    order by t.rank desc, t.id limit n.free for no key update of t skip locked) u
        )
        update task_instance t set rank = t.rank + {PARKED} from free where t.id = free.id and {IS_PARKED}
        """,
        {
            "names": [task.pool for task in tasks],
            "dag_ids": [task.dag_id for task in tasks],
            "task_ids": [task.task_id for task in tasks],
            "free": list(tasks.values()),
            **full.keys(),
        },
    )
