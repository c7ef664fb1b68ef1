"""Workers with what they run, the line of a pool, and the depth of queues over time."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from paceline.states import STARTED
from scheduler.store.db import rows
from scheduler.store.queueing.limits import IN_POOL, USED_SLOTS, WAITING_INSTANCES, WAITS

Row = dict[str, Any]
#: Task instances listed for a pool or a worker.
MOST = 200
HELD = """
    r.dag_id, r.run_id, t.task_id, t.map_index, t.state, t.try_number, t.scheduled_at, t.queued_at, t.started_at, t.pool,
    t.pool_slots, t.worker
"""
RUNNING = f"""
select {HELD} from task_instance t join dag_run r on r.id = t.dag_run_id
 where t.state in {STARTED.sql} and t.worker = any(%s) order by t.started_at
"""


def running(connection: Connection, worker_ids: Collection[str]) -> dict[str, list[Row]]:
    """The task instances that these workers run, the longest first."""
    found: dict[str, list[Row]] = {}
    for row in rows.dicts(connection.exec_driver_sql(RUNNING, (list(worker_ids),))):
        found.setdefault(row["worker"], []).append(row)
    return found


def line(connection: Connection, pool: str) -> Row:
    """The task instances that hold slots of a pool, and those that wait for slots. NotFoundError."""
    found = connection.exec_driver_sql(
        f"""
        select p.name, p.slots, {USED_SLOTS} as used, {WAITING_INSTANCES} as waiting_count
          from pool p where p.name = %s
        """,
        (pool,),
    )
    own = rows.first_dict(found)
    if own is None:
        raise NotFoundError(f"There is no pool {pool!r}.")
    holders = rows.dicts(
        connection.exec_driver_sql(
            f"select {HELD} from pool p join task_instance t on t.pool = p.name join dag_run r on r.id = t.dag_run_id"
            f" where p.name = %s and {IN_POOL} order by t.queued_at limit {MOST}",
            (pool,),
        )
    )
    waiting = rows.dicts(
        connection.exec_driver_sql(
            f"select {HELD} from task_instance t join dag_run r on r.id = t.dag_run_id"
            f" where t.pool = %s and {WAITS} order by t.rank desc, t.id limit {MOST}",
            (pool,),
        )
    )
    return {**own, "holders": holders, "waiting": waiting}


def depths(connection: Connection, *, queue: str | None, hours: float, minutes: int) -> list[Row]:
    """The depth of queues in the last hours: for each `minutes` the highest values."""
    found = connection.exec_driver_sql(
        """
        select queue, date_bin(make_interval(mins => %(minutes)s), at, timestamptz 'epoch') as at, max(scheduled) as scheduled,
               max(queued) as queued, max(running) as running, max(places) as places
          from queue_depth
         where at >= statement_timestamp() - make_interval(secs => %(seconds)s) and (%(queue)s::text is null or queue = %(queue)s)
         group by 1, 2 order by 2, 1
        """,
        {"queue": queue, "seconds": hours * 3600, "minutes": minutes},
    )
    return rows.dicts(found)
