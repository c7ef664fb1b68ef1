"""The timeline of a run: when each task waited, was queued and ran, and the critical path."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from scheduler.serialized.dag import SerializedDag
from scheduler.store.db import rows

Row = dict[str, Any]
#: A mapped task with more instances has one bar for all of them.
MOST_BARS = 100
#: Earlier tries of an instance that have bars: the newest ones.
MOST_TRIES = 20
BARS = """
with instance as (
    select t.id, t.task_no, t.task_id, t.map_index, t.state, t.try_number, t.scheduled_at, t.queued_at, t.started_at, t.ended_at,
           t.worker, count(*) over (partition by t.task_no) as instances
      from task_instance t where t.dag_run_id = %(run)s
)
select task_no, task_id, map_index, state, try_number, scheduled_at, queued_at, started_at, ended_at, worker, 1 as instances
  from instance where instances <= %(most)s
union all
select i.task_no, i.task_id, i.map_index, h.state, h.try_number, h.scheduled_at, h.queued_at, h.started_at, h.ended_at, h.worker, 1
  from instance i cross join lateral (
       select * from task_try h where h.task_instance_id = i.id order by h.try_number desc, h.ended_at desc limit %(tries)s) h
 where i.instances <= %(most)s
union all
select task_no, task_id, -1, case when count(*) = count(ended_at) then max(state) end, max(try_number), min(scheduled_at),
       min(queued_at), min(started_at), case when count(*) = count(ended_at) then max(ended_at) end, null, count(*)
  from instance where instances > %(most)s group by 1, 2
 order by task_no, map_index, try_number
"""


def bars(connection: Connection, dag_run_id: int) -> list[Row]:
    """The newest tries of the task instances of a run, in topological order."""
    return rows.dicts(connection.exec_driver_sql(BARS, {"run": dag_run_id, "most": MOST_BARS, "tries": MOST_TRIES}))


def first_failure(connection: Connection, dag_run_id: int) -> Row | None:
    """The task instance of a run that failed first, with the number of all that failed; None if none did."""
    found = connection.exec_driver_sql(
        """
        select r.dag_id, r.run_id, t.task_id, t.map_index, t.state, t.try_number, t.ended_at, t.reason, count(*) over () as failed
          from task_instance t join dag_run r on r.id = t.dag_run_id
         where t.dag_run_id = %s and t.state = 'failed' order by t.ended_at, t.id limit 1
        """,
        (dag_run_id,),
    )
    return next(iter(rows.dicts(found)), None)


def critical_path(dag: SerializedDag, bars: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tasks that decided how long the run took, the first one first: each is the upstream task that ended last."""
    ended: dict[str, datetime] = {}
    for bar in bars:
        at = bar["ended_at"] or bar["started_at"]
        if at is not None and bar["task_id"] in dag.number:
            ended[bar["task_id"]] = max(at, ended.get(bar["task_id"], at))
    path: list[str] = []
    near = list(ended)
    while near:
        last = max(near, key=lambda name: (ended[name], dag.number[name]))
        path.append(last)
        near = [name for name in dag.tasks[dag.number[last]].upstream if name in ended]
    return path[::-1]
