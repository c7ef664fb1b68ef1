"""Events: every change of state of a run and its task instances, by whom and why. The database writes them (migration 0007)."""

from typing import Any

from sqlalchemy import Connection

from scheduler.store.database import transaction


@transaction
def of_run(connection: Connection, dag_run_id: int) -> list[dict[str, Any]]:
    """The events of a run, oldest first; `task_id` is None for changes of the run, a state for none."""
    rows = connection.exec_driver_sql(
        """
        select e.at, t.task_id, t.map_index, e.try_number, e.from_state, e.to_state, e.actor, e.reason
          from event e left join task_instance t on t.id = e.task_instance_id
         where e.dag_run_id = %s
         order by e.at, e.task_instance_id nulls first
        """,
        (dag_run_id,),
    )
    return [dict(row) for row in rows.mappings()]
