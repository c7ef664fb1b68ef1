"""What ends with a try: the one place that empties a task instance for another try, and keeps the try that has ended."""

from collections.abc import Sequence

from sqlalchemy import Connection

#: Keeps ended tries of task instances `t` in task_try, with `state` and `ended_at`; a condition or join follows.
KEEP_TRY = """
insert into task_try (task_instance_id, try_number, dispatch_id, state, queued_by, worker, scheduled_at, queued_at, started_at,
                      ended_at, reason)
select t.id, t.try_number, t.dispatch_id, {state}, t.queued_by, t.worker, t.scheduled_at, t.queued_at, t.started_at, {ended_at},
       t.reason
  from task_instance t
"""
#: The columns of a dispatch, of a task instance that waits for another one, and of one without a try.
NO_DISPATCH = """dispatch_id = null, dispatched_at = null, queued_by = null, worker = null, queued_at = null, ended_at = null,
               due_at = null"""
NO_TRY = f"{NO_DISPATCH}, scheduled_at = null, started_at = null, resume = null, decision = null, map_label = null"
#: The columns of a task instance that ended without a report: nothing resumes it, and it decided nothing.
NO_RESULT = "due_at = null, resume = null, decision = null"


def forget_triggers(connection: Connection, ti_ids: Sequence[int]) -> None:
    """Delete the triggers of these task instances, which the caller has locked."""
    connection.exec_driver_sql(
        """
        with held as (
            select task_instance_id as id from deferral where task_instance_id = any(%s) order by 1 for update
        )
        delete from deferral d using held where d.task_instance_id = held.id
        """,
        (list(ti_ids),),
    )


def note_results(connection: Connection, ti_ids: Sequence[int]) -> None:
    """Record that the run of these task instances loses or gets results outside of a try, see store/worker/xcoms.RESULTS."""
    connection.exec_driver_sql(
        "update dag_run set results_changed_at = clock_timestamp()"
        " where id in (select dag_run_id from task_instance where id = any(%s))",
        (list(ti_ids),),
    )
