
-- running -> up_for_reschedule or deferred: the try waits without a worker. It stores when the task instance is due, the data for
-- its next dispatch, and the trigger of a deferral. -1152921504606846976 is LOWEST_RANK of store/queueing/limits.py.
\set ti_id $1::bigint \set dispatch_id $2::uuid
\set state $3::text \set reason $4::text \set due_in_s $5::float8 \set resume $6::jsonb
\set classpath $7::text \set kwargs $8::jsonb \set file $9::text
prepare suspend as
with done as (
    update task_instance
       set state = :state, reason = :reason, due_at = clock_timestamp() + :due_in_s * interval '1 second', resume = :resume
     where id = :ti_id and dispatch_id = :dispatch_id and coalesce(state, '') = 'running'
 returning id, dispatch_id, pool
), deferred as (
    insert into deferral as d (task_instance_id, dispatch_id, classpath, kwargs, file)
    select id, dispatch_id, :classpath, :kwargs, :file from done where :classpath is not null
    on conflict (task_instance_id) do update
       set dispatch_id = excluded.dispatch_id, classpath = excluded.classpath, kwargs = excluded.kwargs, file = excluded.file,
           created_at = now(), waiter = null
)
select coalesce((select w.rank > -1152921504606846976 from task_instance w
                  where w.pool = done.pool and w.state = 'scheduled'
                  order by w.rank desc limit 1), false) as pool_has_waiting from done;
