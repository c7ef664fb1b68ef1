"""The end of a stopped task instance: moves it to the state that a person, or the end of its run, requested.

The process that sees the user code end runs it: the pool process, the worker if the pool process died, or a scheduler if the
worker is lost.
"""

#: Keeps ended tries of task instances `t` in task_try, with `state` and `ended_at`; a condition or join follows.
KEEP_TRY = """
insert into task_try (task_instance_id, try_number, dispatch_id, state, queued_by, worker, scheduled_at, queued_at, started_at,
                      ended_at, reason)
select t.id, t.try_number, t.dispatch_id, {state}, t.queued_by, t.worker, t.scheduled_at, t.queued_at, t.started_at, {ended_at},
       t.reason
  from task_instance t
"""
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
)
update task_instance t
   set state = nullif(t.requested_state, 'none'), requested_state = null, resume = null, decision = null, due_at = null,
       ended_at = case when t.requested_state <> 'none' then clock_timestamp() end,
       reason = coalesce(t.reason, case when t.requested_state = 'none' then 'cleared' else 'marked' end),
       dispatch_id = case when t.requested_state <> 'none' then t.dispatch_id end,
       dispatched_at = null,
       queued_by = case when t.requested_state <> 'none' then t.queued_by end,
       worker = case when t.requested_state <> 'none' then t.worker end,
       scheduled_at = case when t.requested_state <> 'none' then t.scheduled_at end,
       queued_at = case when t.requested_state <> 'none' then t.queued_at end,
       started_at = case when t.requested_state <> 'none' then t.started_at end
  from stopped s where t.id = s.id and t.state = 'shutdown'
returning t.dag_run_id
"""
