"""queued -> running again: a crash of PostgreSQL undid a claim, which does not wait for the disk. The claim itself is claim.sql."""

from collections.abc import Mapping

from sqlalchemy import Connection

#: Of one dispatch, by the process that runs it.
CLAIM_AGAIN = """
update task_instance set state = 'running', worker = %s, reason = null, started_at = %s
 where id = %s and dispatch_id = %s and state = 'queued' returning id
"""


def claim_undone(connection: Connection, worker_id: str, running: Mapping[str, int]) -> None:
    """Claim again what a worker runs: dispatch IDs with the IDs of their task instances."""
    connection.exec_driver_sql(
        """
        with undone as (
            select id from task_instance where id = any(%(instances)s) and state = 'queued'
               and dispatch_id = any(%(dispatches)s::uuid[]) order by id for no key update
        )
        update task_instance t set state = 'running', started_at = clock_timestamp(), worker = %(worker)s
          from undone where t.id = undone.id and t.state = 'queued'
        """,
        {"worker": worker_id, "instances": list(running.values()), "dispatches": list(running)},
    )
