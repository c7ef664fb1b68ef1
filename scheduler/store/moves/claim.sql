
-- queued -> running: a pool process takes the task instance of a message, for exactly this dispatch.
--
-- A statement that waits for a lock then reads the new version of that one row, and everything else as of its start. So a
-- statement that decides by other rows too must not wait. It comes after one that only takes the locks, in the same message and
-- thus the same transaction, and begins when these are held; see docs/explanation/locks.md.
--
-- Where a row is found by its ID, its state is compared as coalesce(state, ''). With plain `state`, the planner could choose a
-- partial index whose statistics show it as empty, and read all of it, with dead entries, for that one row.

-- The lock of a claim, and of a report that moves nothing.
\set ti_id $1::bigint \set dispatch_id $2::uuid
prepare hold as
select from task_instance where id = :ti_id and dispatch_id = :dispatch_id for no key update;

-- Runs after `hold`. With `is_repeated` it also returns what an earlier attempt of this process claimed, if its answer was lost.
\set ti_id $1::bigint \set dispatch_id $2::uuid \set worker $3::text \set is_repeated $4::boolean
prepare claim as
update task_instance t
   set state = 'running', worker = :worker, reason = null,
       started_at = case when t.resume is null then clock_timestamp() else coalesce(t.started_at, clock_timestamp()) end
  from dag_run r
 where t.id = :ti_id and t.dispatch_id = :dispatch_id and r.id = t.dag_run_id
   and (coalesce(t.state, '') = 'queued' or (:is_repeated and coalesce(t.state, '') = 'running' and t.worker = :worker))
   -- Work of a worker that was declared lost would never be recovered.
   and exists (select from process p where p.id = :worker and p.stopped_at is null)
   -- Nothing that was queued before a crash of PostgreSQL: the crash may have undone its claim, which its worker then repeats. If
   -- no worker does, the rescue service sends it under a new dispatch ID.
   and exists (select from crash_free c where c.one and t.queued_at > c.since)
returning t.id, t.dispatch_id::text, t.task_id, t.map_index, t.task_no, t.try_number, t.max_tries, t.queue, t.pool, t.pool_slots,
          t.priority_weight, t.started_at, t.resume, r.id as dag_run_id, r.dag_id, r.run_id, r.run_type, r.logical_date,
          r.data_interval_start, r.data_interval_end, r.run_after, r.started_at as run_started_at, r.conf, r.version_id,
          r.partition_key, r.partition_date;
