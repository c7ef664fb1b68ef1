
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

-- As `hold_moves`, for all reports of `steps`, each of which moves one task instance.
\set ti_ids $1::bigint[] \set dag_run_ids $2::bigint[] \set task_nos $3::int[] \set map_indexes $4::int[]
prepare hold_steps as
select from task_instance
 where id = any (array (select unnest(:ti_ids) union all
                        select t.id from unnest(:dag_run_ids, :task_nos, :map_indexes) n (dag_run_id, task_no, map_index)
                         cross join lateral (  -- "offset 0" as in `hold_moves`
                               select id from task_instance
                                where dag_run_id = n.dag_run_id and task_no = n.task_no and map_index = n.map_index offset 0) t))
 order by id for no key update;

-- Runs after `hold`, `hold_moves` or `lock_joins`, so that no run changes its version in the meantime.
-- The parameters: the reported try and its process; the end; the ranges of upstream tasks as in joins.sql, and the joins to decide
-- under locks; the moves; and who gets the slots. `successor` is the position, from 1, of the move that gets them.
-- `next_dispatch_id` is the dispatch ID of the task instance that gets them: the successor, or else the first one waiting. With
-- `in_place_id` it goes straight to running under that ID, in the process that reports, unless it must go by message.
-- Nothing is stored if workers have all upstream tasks of one of `joins`: it may be ready, which must be decided under locks.
-- `step` is the report of a task with one successor that goes on in place, as in most of a pipeline. It is this text without the
-- lines from "--[" to "--]", and with those behind "--step". It stores nothing if the successor cannot go on in place.
-- `steps`, after `hold_steps`, is `step` for several reports at once, each of which is stored or not. Each parameter is an array
-- with a value for each report, `q` has a row for each, and the lines behind "--steps" keep these apart.
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
with
--[
probe as materialized (  -- The tasks with an upstream task that no worker has yet, as `unstarted` of joins.sql.
    select coalesce(array_agg(n.task_no), '{}') as waiting
      from unnest(:tasks, :lows, :highs) n (task_no, low, high)
     cross join lateral (
           select 1 from task_instance t
            where t.dag_run_id = :dag_run_id and t.task_no between n.low and n.high
              and (t.state is null or t.state in ('scheduled', 'queued', 'up_for_retry', 'up_for_reschedule', 'deferred'))
            order by t.task_no desc limit 1) found
),
--]
around as materialized (  -- The try, unless it has ended or a join may be ready; and what decides who gets its slots.
    select t.id, t.dag_run_id, t.pool, t.pool_slots, t.queue, s.is_paused,
           r.state = 'running' and r.version_id = :version_id as run_goes_on,
--steps    q.no,
           next.id as first_id, next.rank as first_rank, next.dag_run_id = t.dag_run_id as first_is_ours,
--[
           other.waits is not null as others_wait, p.passes_slots_on,
--]
           -- As for a claim: work of a worker that was declared lost would never be recovered.
           :in_place_id is not null and coalesce(p.passes_slots_on, false)
           and exists (select from process w where w.id = :worker and w.stopped_at is null) as in_place
      from task_instance t
--steps join q on q.ti_id = t.id
      join dag_run r on r.id = t.dag_run_id
      join dag_schedule s on s.dag_id = r.dag_id
      left join pool p on p.name = t.pool
      left join lateral (
           select w.id, w.rank, w.dag_run_id from task_instance w
            where w.pool = t.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit 1) next on next.rank > -1152921504606846976
--[
      left join lateral (  -- from the high end, as in `unstarted`
           select true as waits from task_instance o
            where o.dag_run_id = t.dag_run_id
              and (o.state is null or o.state in ('scheduled', 'queued', 'up_for_retry', 'up_for_reschedule', 'deferred'))
            order by o.task_no desc limit 1) other on true
--]
     where t.id = :ti_id and t.dispatch_id = :dispatch_id and coalesce(t.state, '') = 'running'
--[
       and (select waiting @> :joins from probe)
--]
), verdict as materialized (  -- The moves, and which one inherits the slots.
    select b.id, n.state, n.reason, b.pool, b.rank, a.in_place and b.queue = a.queue as same_queue,
--steps    a.no,
           n.place = coalesce(:successor, 0) and not a.is_paused and b.pool = a.pool and b.pool_slots <= a.pool_slots
           and (a.first_id is null
                or (not :aging and (b.rank > a.first_rank or (b.rank = a.first_rank and b.id < a.first_id)
                                    -- A task of another run waits for the budget of this process at most.
                                    or (not a.first_is_ours and a.in_place and b.queue = a.queue)))) as inherits
      from around a
--steps join q using (no)
--[
     cross join unnest(:task_nos, :map_indexes, :verdicts, :reasons, :below_branch) with ordinality
--]
--step cross join lateral (values ((:task_nos)[1], (:map_indexes)[1], (:verdicts)[1], (:reasons)[1], (:below_branch)[1], 1))
           n (task_no, map_index, state, reason, below_branch, place)
     cross join lateral (  -- "offset 0": one index lookup for each number, instead of a scan of the whole run
           select id, pool, pool_slots, queue, rank, reason as was from task_instance
            where dag_run_id = :dag_run_id and task_no = n.task_no and map_index = n.map_index and state is null offset 0) b
     -- A cleared task below a branch is left to the scheduler, which has the branch's decision.
     where a.run_goes_on and (b.was is null or not n.below_branch)
--[
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
       and not exists (select from verdict v
                        where v.inherits
                           or (v.state = 'scheduled' and v.pool = a.pool
                               and (v.rank > a.first_rank or (v.rank = a.first_rank and v.id < a.first_id))))
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
--]
), change as materialized (  -- `was` is the state before; one that gets slots runs in place or is queued.
    select a.id, 'running' as was, :state as state, :reason as reason, false as gets_slots, false as in_place
--steps    , a.no
      from around a
--step join verdict v on v.inherits and v.same_queue
--steps and v.no = a.no join q on q.no = a.no
     union all
    select id, '', state, reason, inherits, inherits and same_queue
--steps    , no
      from verdict
--step where inherits and same_queue
--[
     union all
    select id, 'scheduled', 'scheduled', null, true, in_place from next
--]
), stored as (
    insert into xcom (task_instance_id, key, value)
    select id, 'return_value', :result
      from change
--steps join q using (no)
     where was = 'running' and :result is not null
    on conflict (task_instance_id, key) do update set value = excluded.value, created_at = now()
), changed as (  -- One update for all rows: each further one would prepare the indexes, checks and triggers of the table again.
    update task_instance t
       set state = case when c.in_place then 'running' when c.gets_slots then 'queued' else c.state end,
           reason = case when not c.in_place then case c.was when 'scheduled' then t.reason else c.reason end end,
           try_number = t.try_number + case when c.was = '' and c.state = 'scheduled' then 1 else 0 end,
           scheduled_at = case c.was when '' then case when c.state = 'scheduled' then clock_timestamp() end else t.scheduled_at end,
           queued_at = case when c.gets_slots then clock_timestamp() when c.was <> '' then t.queued_at end,
           queued_by = case when c.gets_slots then :worker when c.was <> '' then t.queued_by end,
           dispatch_id = case when c.in_place then :in_place_id when c.gets_slots then :next_dispatch_id
                              when c.was <> '' then t.dispatch_id end,
           dispatched_at = case when c.was <> 'scheduled' then t.dispatched_at end,
           worker = case when c.in_place then :worker else t.worker end,
           started_at = case when c.in_place then clock_timestamp() else t.started_at end,
           ended_at = case when c.was = 'running' or c.state in ('upstream_failed', 'skipped') then clock_timestamp()
                           when c.was = 'scheduled' then t.ended_at end,
           resume = case when c.was <> 'running' then t.resume end,
           decision = case c.was when 'running' then :decision else t.decision end,
           due_at = case c.was when 'running' then clock_timestamp() + :due_in_s * interval '1 second' else t.due_at end
      from change c
--steps join q using (no)
     where t.id = c.id and coalesce(t.state, '') = c.was
 returning c.was,
--steps    c.no,
           t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool, t.pool_slots,
           t.task_no, t.try_number, t.max_tries, t.started_at
)
--step select changed.*, :version_id as version_id from changed
--steps join q using (no)
--step where was = ''
--[
select probe.waiting, a.first_id is not null as pool_has_waiting, a.others_wait, a.run_goes_on, :version_id as version_id,
       m.was = 'scheduled' as was_waiting, m.id, m.task_id, m.map_index, m.queue, m.priority_weight, m.dispatch_id, m.state, m.pool,
       m.pool_slots, m.task_no, m.try_number, m.max_tries, m.started_at
  from probe
  left join around a on true
  left join changed m on m.was <> 'running'
--]
;
