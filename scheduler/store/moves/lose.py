"""running -> up_for_retry or failed, shutdown -> the requested state: the process that ran them is lost."""

from sqlalchemy import Connection

from paceline.states import STARTED
from scheduler.store.moves.stop import END_AS_REQUESTED


def lose(connection: Connection, *, dead_worker: str | None = None, ti_id: int | None = None,
         dispatch_id: str | None = None, reason: str, at_once: bool) -> list[int]:  # fmt: skip
    """running -> up_for_retry or failed, shutdown -> the requested state: the process that ran them is lost.

    The task instances are those of a worker, or of one dispatch. `at_once` retries without the retry_delay of the task, which
    did not cause the failure. Returns the IDs of the changed runs.
    """
    parameters = {"worker": dead_worker, "id": ti_id, "dispatch_id": dispatch_id, "reason": reason, "at_once": at_once}
    which = "(worker = %(worker)s or (id = %(id)s and dispatch_id = %(dispatch_id)s::uuid))"
    # The next statements begin when this one has the locks: a task that was stopped in the meantime ends as requested, and the
    # number of a task and the version of its run belong together.
    held = connection.exec_driver_sql(
        f"select id from task_instance where state in {STARTED.sql} and {which} order by id for no key update", parameters
    )
    ids = list(held.scalars())
    ended = END_AS_REQUESTED.format(which="id = any(%(ids)s)")
    stopped = connection.exec_driver_sql(ended, {"ids": ids}).scalars().all()
    lost = connection.exec_driver_sql(
        """
        update task_instance t
           set state = case when t.max_tries > 0 and t.try_number <= t.max_tries then 'up_for_retry' else 'failed' end,
               ended_at = clock_timestamp(), reason = %(reason)s, resume = null,
               due_at = clock_timestamp() + case when %(at_once)s then interval '0' else
                        make_interval(secs => least(coalesce((v.data->'tasks'->t.task_no->>'retry_delay_s')::float, 0), 1e9)) end
          from dag_run r, dag_version v
         where t.id = any(%(ids)s) and t.state = 'running' and r.id = t.dag_run_id and v.id = r.version_id
        returning t.dag_run_id
        """,
        {**parameters, "ids": ids},
    )
    return sorted({*stopped, *lost.scalars()})
