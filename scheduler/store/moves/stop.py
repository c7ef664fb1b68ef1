"""running -> shutdown, and then the requested state once the user code has ended. What has not started is skipped at once."""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from paceline.states import OPEN, STARTED
from scheduler.store.moves.reset import KEEP_TRY, NO_RESULT, NO_TRY

STOPPED_TRY = KEEP_TRY.format(state="'shutdown'", ended_at="clock_timestamp()")
#: `which` selects the rows. For cleared ones, the ended try is kept in task_try, and their reason leaves them to the scheduler.
END_AS_REQUESTED = f"""
with stopped as (
    -- With what is requested now that the row is locked: "t" below may be as it was before a mark or clear in the meantime.
    select id, requested_state from task_instance where state = 'shutdown' and {{which}} order by id for no key update
), kept as (
    {STOPPED_TRY} join stopped s using (id) where s.requested_state = 'none'
), forgotten as (
    delete from xcom x using stopped s where s.requested_state = 'none' and x.task_instance_id = s.id
), cleared as (
    update task_instance t set state = null, requested_state = null, reason = coalesce(t.reason, 'cleared'), {NO_TRY}
      from stopped s where t.id = s.id and s.requested_state = 'none' and t.state = 'shutdown'
    returning t.dag_run_id
), marked as (
    update task_instance t
       set state = s.requested_state, requested_state = null, reason = coalesce(t.reason, 'marked'), ended_at = clock_timestamp(),
           dispatched_at = null, {NO_RESULT}
      from stopped s where t.id = s.id and s.requested_state <> 'none' and t.state = 'shutdown'
    returning t.dag_run_id
)
select dag_run_id from cleared union all select dag_run_id from marked
"""


def stop(connection: Connection, ti_ids: Sequence[int], *, becomes: str, reason: str, retries: Sequence[int] = ()) -> None:
    """running -> shutdown, and then `becomes` once its worker has stopped it. One that is already stopping gets `becomes` too.

    `retries` are the further tries that each gets.
    """
    if not ti_ids:
        return
    connection.exec_driver_sql(
        f"""
        update task_instance t
           set state = 'shutdown', requested_state = %(becomes)s, reason = %(reason)s,
               max_tries = coalesce(t.try_number + n.retries, t.max_tries)
          from unnest(%(ids)s::bigint[], %(retries)s::int[]) n (id, retries)
         where t.id = n.id and t.state in {STARTED.sql}
        """,
        {"ids": list(ti_ids), "retries": list(retries), "becomes": becomes, "reason": reason},
    )


def end_rest(connection: Connection, dag_run_id: int, *, running_becomes: str, reason: str, keep: Collection[int] = ()) -> int:
    """Skip task instances that have not started, and have workers stop running ones, which get the state `running_becomes`.

    Tasks with numbers in `keep` continue. The caller has the run locked. Returns the number of task instances changed.
    """
    ended = connection.exec_driver_sql(
        f"""
        with rest as (
            select id, state as was from task_instance
             where dag_run_id = %(run)s and task_no <> all(%(keep)s::int[])
               and (state is null
                    or state in {OPEN.sql})
             order by id for no key update
        ), awaited as (
            select d.task_instance_id as id from deferral d join rest on rest.id = d.task_instance_id order by 1 for update of d
        ), given_up as (
            delete from deferral d using awaited where d.task_instance_id = awaited.id
        )
        update task_instance t
           set state = case when t.state in {STARTED.sql} then 'shutdown' else 'skipped' end,
               requested_state = case when t.state in {STARTED.sql} then %(requested_state)s end,
               ended_at = case when t.state in {STARTED.sql} then t.ended_at else clock_timestamp() end,
               due_at = null, reason = %(reason)s,
               resume = case when t.state in {STARTED.sql} then t.resume end
          from rest where t.id = rest.id
        """,
        {"run": dag_run_id, "keep": list(keep), "requested_state": running_becomes, "reason": reason},
    )
    return ended.rowcount
