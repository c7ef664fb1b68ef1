
-- running -> the end of a try, with the moves of downstream task instances: none -> scheduled, queued, running, skipped or
-- upstream_failed; and scheduled -> queued or running for the one that takes over the slots.

-- As `hold` of claim.sql, with the rows that the report moves, in ID order. If the run has another version now, its tasks have
-- other numbers, and the report moves none.
\set ti_id $1::bigint \set dag_run_id $2::bigint \set task_nos $3::int[] \set map_indexes $4::int[]
prepare hold_moves as
select from task_instance
 where id = any (array (select :ti_id union all
                        select t.id from unnest(:task_nos, :map_indexes) n (task_no, map_index)
                         cross join lateral (  -- "offset 0": one index lookup for each number, instead of a scan of the whole run
                               select id from task_instance
                                where dag_run_id = :dag_run_id and task_no = n.task_no and map_index = n.map_index offset 0) t))
 order by id for no key update;

-- Runs after `hold`, `hold_moves` or `lock_joins`, so that no run changes its version in the meantime.
-- The parameters: the reported try and its process; the end; the ranges of upstream tasks as in joins.sql, and the joins to decide
-- under locks; the moves; and who gets the slots. `successor` is the position, from 1, of the move that gets them.
-- `next_dispatch_id` is the dispatch ID of the task instance that gets them: the successor, or else the first one waiting. With
-- `in_place_id` it goes straight to running under that ID, in the process that reports, unless it must go by message.
-- Nothing is stored if workers have all upstream tasks of one of `joins`: it may be ready, which must be decided under locks.
-- -1152921504606846976 is LOWEST_RANK of store/queueing/limits.py, and 8 how many of those first in line may get the slots.
\set ti_id $1::bigint \set dispatch_id $2::uuid \set dag_run_id $3::bigint \set version_id $4::bigint
\set worker $5::text \set place $6::int
\set state $7::text \set reason $8::text \set due_in_s $9::float8 \set decision $10::jsonb \set result $11::json
\set tasks $12::int[] \set lows $13::int[] \set highs $14::int[] \set joins $15::int[]
\set task_nos $16::int[] \set map_indexes $17::int[]
\set verdicts $18::text[] \set reasons $19::text[] \set below_branch $20::boolean[]
\set successor $21::bigint \set next_dispatch_id $22::uuid \set in_place_id $23::uuid
\set line_in_place $24::boolean \set aging $25::boolean
prepare report as
with probe as materialized (  -- The tasks with an upstream task that no worker has yet, as `unstarted` of joins.sql.
    select coalesce(array_agg(n.task_no), '{}') as waiting
      from unnest(:tasks, :lows, :highs) n (task_no, low, high)
     cross join lateral (
           select 1 from task_instance t
            where t.dag_run_id = :dag_run_id and t.task_no between n.low and n.high
              and (t.state is null or t.state in ('scheduled', 'queued', 'up_for_retry', 'up_for_reschedule', 'deferred'))
            order by t.task_no desc limit 1) found
), below as materialized (  -- The undecided task instances that the moves name.
    select t.*, n.state, n.reason, n.below_branch, n.place
      from unnest(:task_nos, :map_indexes, :verdicts, :reasons, :below_branch)
           with ordinality n (task_no, map_index, state, reason, below_branch, place)
     cross join lateral (  -- "offset 0": one index lookup for each number, instead of a scan of the whole run
           select id, pool, pool_slots, queue, rank, reason as was from task_instance
            where dag_run_id = :dag_run_id and task_no = n.task_no and map_index = n.map_index and state is null offset 0) t
), done as (  -- The end of the try.
    update task_instance
       set state = :state, ended_at = clock_timestamp(), reason = :reason, resume = null, decision = :decision,
           due_at = clock_timestamp() + :due_in_s * interval '1 second'
     where id = :ti_id and dispatch_id = :dispatch_id and coalesce(state, '') = 'running' and (select waiting @> :joins from probe)
 returning id, dag_run_id, pool, pool_slots, queue
), stored as (
    insert into xcom (task_instance_id, key, value) select id, 'return_value', :result from done where :result is not null
    on conflict (task_instance_id, key) do update set value = excluded.value, created_at = now()
), around as (  -- What decides who gets the slots: the run, the first in line for the pool, and whether this process continues.
    select done.dag_run_id, done.pool, done.pool_slots, done.queue, s.is_paused,
           r.state = 'running' and r.version_id = :version_id as run_goes_on,
           next.id as first_id, next.rank as first_rank, next.dag_run_id = done.dag_run_id as first_is_ours,
           other.waits is not null as others_wait, p.passes_slots_on,
           -- As for a claim: work of a worker that was declared lost would never be recovered.
           :in_place_id is not null and coalesce(p.passes_slots_on, false)
           and exists (select from process w where w.id = :worker and w.stopped_at is null) as in_place
      from done
      join dag_run r on r.id = done.dag_run_id
      join dag_schedule s on s.dag_id = r.dag_id
      left join pool p on p.name = done.pool
      left join lateral (
           select w.id, w.rank, w.dag_run_id from task_instance w
            where w.pool = done.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit 1) next on next.rank > -1152921504606846976
      left join lateral (  -- from the high end, as in `unstarted`
           select true as waits from task_instance o
            where o.dag_run_id = done.dag_run_id
              and (o.state is null or o.state in ('scheduled', 'queued', 'up_for_retry', 'up_for_reschedule', 'deferred'))
            order by o.task_no desc limit 1) other on true
), verdict as (  -- The moves, and which one inherits the slots.
    select v.*, v.inherits and v.same_queue as in_place from (
        select b.id, b.state, b.reason, a.in_place and b.queue = a.queue as same_queue,
               b.place = coalesce(:successor, 0) and not a.is_paused and b.pool = a.pool and b.pool_slots <= a.pool_slots
               and (a.first_id is null
                    or (not :aging and (b.rank > a.first_rank or (b.rank = a.first_rank and b.id < a.first_id)
                                        -- A task of another run waits for the budget of this process at most.
                                        or (not a.first_is_ours and a.in_place and b.queue = a.queue)))) as inherits
          from around a cross join below b
         -- A cleared task below a branch is left to the scheduler, which has the branch's decision.
         where a.run_goes_on and (b.was is null or not b.below_branch)
         order by b.id) v
), moved as (
    update task_instance t
       set state = case when v.in_place then 'running' when v.inherits then 'queued' else v.state end,
           reason = case when not v.in_place then v.reason end,
           try_number = t.try_number + case when v.state = 'scheduled' then 1 else 0 end,
           scheduled_at = case when v.state = 'scheduled' then clock_timestamp() end,
           queued_at = case when v.inherits then clock_timestamp() end,
           queued_by = case when v.inherits then :worker end,
           dispatch_id = case when v.in_place then :in_place_id when v.inherits then :next_dispatch_id end,
           worker = case when v.in_place then :worker else t.worker end,
           started_at = case when v.in_place then clock_timestamp() else t.started_at end,
           ended_at = case when v.state in ('upstream_failed', 'skipped') then clock_timestamp() end
      from verdict v
     where t.id = v.id and coalesce(t.state, '') = ''
 returning t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool,
           t.pool_slots, t.task_no, t.try_number, t.max_tries, t.started_at, t.rank
), line as (  -- Those first in line for the pool, and whether each may have these slots without any limit being counted again.
    select w.id, w.rank, bool_and(w.fits) over (order by w.rank desc, w.id) as is_next
      from around a
     cross join lateral (
           select w.id, w.rank, w.dag_run_id = a.dag_run_id and w.queue = a.queue and w.pool_slots <= a.pool_slots
                  and w.max_active_tis_per_dag is null and w.max_active_tis_per_dagrun is null as fits
             from task_instance w
            where w.pool = a.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit 8) w
     where w.rank > -1152921504606846976
       and :next_dispatch_id is not null and not :aging and a.first_is_ours and a.run_goes_on and not a.is_paused
       and a.passes_slots_on
       -- Reads `moved`, so that this runs after it: a transaction that locks the next in line then waits for no other lock.
       and not exists (select from moved m
                        where m.dispatch_id is not null
                           or (m.state = 'scheduled' and m.pool = a.pool
                               and (m.rank > a.first_rank or (m.rank = a.first_rank and m.id < a.first_id))))
), next as (  -- Rows that another process is taking are skipped.
    -- What resumes an earlier dispatch has an event of its own when it starts, so it goes by message.
    select t.id, a.in_place and :line_in_place and t.resume is null as in_place
      from around a cross join line join task_instance t on t.id = line.id
     -- "coalesce": looked up by id. As `state = 'scheduled'` it would let the planner read the whole line for each.
     where line.is_next and coalesce(t.state, '') = 'scheduled'
     -- The processes of a worker prefer different ones of equal rank. After losing a race for one, PostgreSQL checks the row again,
     -- and for that prepares the plans of all these queries again.
     order by line.rank desc, (line.id - a.first_id + :place) % 8, line.id limit 1
       for no key update of t skip locked
), handed as (  -- The one in line that gets the slots.
    update task_instance t
       set state = case when next.in_place then 'running' else 'queued' end,
           dispatch_id = case when next.in_place then :in_place_id else :next_dispatch_id end,
           queued_at = clock_timestamp(), queued_by = :worker, dispatched_at = null,
           worker = case when next.in_place then :worker else t.worker end,
           started_at = case when next.in_place then clock_timestamp() else t.started_at end,
           reason = case when not next.in_place then t.reason end
      from next
     where t.id = next.id and coalesce(t.state, '') = 'scheduled'
 returning t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool,
           t.pool_slots, t.task_no, t.try_number, t.max_tries, t.started_at
)
select probe.waiting, a.first_id is not null as pool_has_waiting, a.others_wait, a.run_goes_on, :version_id as version_id, m.*
  from probe
  left join around a on true
  left join (select false as was_waiting, id, task_id, map_index, queue, priority_weight, dispatch_id, state, pool, pool_slots,
                    task_no, try_number, max_tries, started_at
               from moved
             union all
             select true, id, task_id, map_index, queue, priority_weight, dispatch_id, state, pool, pool_slots,
                    task_no, try_number, max_tries, started_at from handed) m
    on true;
