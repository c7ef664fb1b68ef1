"""Events: every change of state of a run and its task instances, with the actor and the reason. Database triggers write them.

The steps scheduled -> queued -> running write no event of their own: their times and actors are columns of the task instance,
and of the event that ends the dispatch. The functions here return each of these steps as an event too.
"""

from typing import Any

from sqlalchemy import Connection

#: For a current dispatch, the steps are only in the row of the task instance. An event is written at the end of the statement that
#: also queues and starts the next tasks, so the time of the last end is that in its row, which is before theirs.
OF_RUN = """
select case when e.from_state = 'running' and e.to_state = t.state and t.ended_at < e.at then t.ended_at else e.at end as at,
       e.task_instance_id as ti, t.task_id, t.map_index, e.try_number, e.from_state, e.to_state, e.actor, e.reason,
       e.queued_at, e.queued_by, e.started_at, e.worker
  from event e left join task_instance t on t.id = e.task_instance_id
 where e.dag_run_id = %(run)s and (%(ti)s::bigint is null or e.task_instance_id = %(ti)s)
union all
select null, t.id, t.task_id, t.map_index, t.try_number, null, null, null, null,
       t.queued_at, t.queued_by, case when t.state = 'running' then t.started_at end, t.worker
  from task_instance t
 where t.dag_run_id = %(run)s and (%(ti)s::bigint is null or t.id = %(ti)s)
   and (t.state = 'queued' or (t.state = 'running' and t.resume is null))
   and exists (select 1 from event where dag_run_id = %(run)s)
"""


def record(connection: Connection, wanted: bool) -> None:
    """Store core.record_events for sessions that cannot set it themselves: those of workers with a separate role."""
    connection.exec_driver_sql("update paceline_schema set record_events = %s where record_events <> %s", (wanted, wanted))


def of_run(connection: Connection, dag_run_id: int, ti_id: int | None = None) -> list[dict[str, Any]]:
    """The events of a run, or of one of its task instances, oldest first.

    `task_id` is None for changes of the run itself, and a state None for undecided.
    """
    found: list[dict[str, Any]] = []
    for row in connection.exec_driver_sql(OF_RUN, {"run": dag_run_id, "ti": ti_id}).mappings():
        step = {name: row[name] for name in ("ti", "task_id", "map_index", "try_number")}
        if row["queued_at"] is not None:
            found.append(step | {"at": row["queued_at"], "to_state": "queued", "actor": row["queued_by"], "reason": None})
        if row["started_at"] is not None:
            found.append(step | {"at": row["started_at"], "to_state": "running", "actor": row["worker"], "reason": None})
        if row["at"] is not None:
            found.append(step | {name: row[name] for name in ("at", "from_state", "to_state", "actor", "reason")})
    found.sort(key=lambda event: (event["at"], event["ti"] or 0))
    states: dict[int | None, str | None] = {}
    for event in found:
        ti = event.pop("ti")
        event.setdefault("from_state", states.get(ti))
        states[ti] = event["to_state"]
    return found
