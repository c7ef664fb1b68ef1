"""The SQL of the hot path, prepared once on each connection of a pool child; hot.py calls it."""

from scheduler.states import IDLE, States, TaskState

#: Ends that are decided without a worker.
NEVER_RUN = States({TaskState.SKIPPED, TaskState.UPSTREAM_FAILED})
#: Where a row is known by its id, its state is asked for as coalesce(state, ''): written plainly, it would let the planner take a
#: partial index that it believes to be empty, and read all of it, dead entries and all, for that one row.
STATEMENTS = f"""
prepare claim (bigint, uuid, text, double precision) as
update task_instance t
   set state = 'running', worker = $3, reason = null,
       started_at = case when t.resume is null then clock_timestamp() else coalesce(t.started_at, clock_timestamp()) end
  from dag_run r
 where t.id = $1 and coalesce(t.state, '') = 'queued' and t.dispatch_id = $2 and r.id = t.dag_run_id
   -- Nobody would miss what runs under the name of a worker that was declared dead.
   and exists (select from process p where p.id = $3 and p.stopped_at is null)
   -- For $4 seconds after a crash of PostgreSQL nothing that was queued before: the crash may have undone its claim, which its
   -- worker asserts again. Rescue sends the message anew.
   and exists (select from crash_free c
                where c.one and (t.queued_at > c.since or c.since < clock_timestamp() - $4 * interval '1 second'))
returning t.id, t.dispatch_id::text, t.task_id, t.map_index, t.task_no, t.try_number, t.max_tries, t.queue, t.pool, t.pool_slots,
          t.priority_weight, t.started_at, t.resume, r.id, r.dag_id, r.run_id, r.run_type, r.logical_date, r.data_interval_start,
          r.data_interval_end, r.run_after, r.started_at, r.conf, r.version_id;

-- Joins of $2 (task numbers, one row a range of their upstream tasks) with an upstream task that no worker has yet.
-- Read from the high end: tasks are queued from the low end, so the first row met is nearly always the answer.
prepare unstarted (bigint, int[], int[], int[]) as
select distinct n.task_no
  from unnest($2, $3, $4) n (task_no, low, high)
 cross join lateral (
       select 1 from task_instance t
        where t.dag_run_id = $1 and t.task_no between n.low and n.high
          and (t.state is null or t.state in {IDLE.sql})
        order by t.task_no desc limit 1) found;

-- Two last siblings must not each think the other unfinished: whoever gets these rows second sees the first's result.
prepare lock_joins (bigint, bigint, int[], int) as
select id from task_instance
 where id = any (array (select $1 union all
                        select t.id from task_instance t
                         where t.dag_run_id = $2 and t.task_no = any($3) and t.map_index in (-1, $4)))
 order by id for no key update;

prepare upstream_states (bigint, int[], int[], int[], bigint) as
select n.task_no, t.state, count(*)
  from unnest($2, $3, $4) n (task_no, low, high)
  join task_instance t on t.dag_run_id = $1 and t.task_no between n.low and n.high and t.id <> $5
 group by 1, 2;

-- Of the tasks $2 of one mapped group, the instances of one index.
prepare peer_states (bigint, int[], int) as
select task_no, state from task_instance where dag_run_id = $1 and task_no = any($2) and map_index = $3;

-- $1 id, $2 dispatch id, $3 state, $4 reason, $5 seconds until due, $6 return value, $7 worker, $8 what a branch decided,
-- $9 the version that was followed, $10 whether rank rises with age; what to move: $11 task numbers, $12 map indexes,
-- $13 verdicts, $14 reasons, $15 whether a branch lies above; $16 which of them is the heir (NULL: none), $17 the dispatch id of
-- whoever gets the slots: the heir, or else the next that waits for them (NULL: nobody); $18 the run, and as in unstarted the tasks
-- $19-$21 that are asked about. Nothing is stored if one of $22, the joins, waits for no task that a worker does not have: it may
-- be ready, which is decided under locks.
prepare report (bigint, uuid, text, text, double precision, json, text, jsonb, bigint, boolean,
                int[], int[], text[], text[], boolean[], bigint, uuid, bigint, int[], int[], int[], int[]) as
with probe as materialized (
    select coalesce(array_agg(n.task_no), '{{}}') as waiting
      from unnest($19, $20, $21) n (task_no, low, high)
     cross join lateral (
           select 1 from task_instance t
            where t.dag_run_id = $18 and t.task_no between n.low and n.high
              and (t.state is null or t.state in {IDLE.sql})
            order by t.task_no desc limit 1) found
), below as materialized (
    select t.*, n.state, n.reason, n.below_branch, n.place
      from unnest($11, $12, $13, $14, $15) with ordinality n (task_no, map_index, state, reason, below_branch, place)
     cross join lateral (  -- "offset 0": one look by number for each, never the whole run with the numbers picked out of it
           select id, pool, pool_slots, rank, reason as was from task_instance
            where dag_run_id = $18 and task_no = n.task_no and map_index = n.map_index and state is null offset 0) t
), first as materialized (
    -- Locks are taken in id order, also where a task was added to the run after what comes below it.
    select count(*) from (
        select id from task_instance
         where id = any (array (select id from below where id < $1)) order by id for no key update) held
), done as (
    update task_instance
       set state = $3, ended_at = clock_timestamp(), reason = $4, due_at = clock_timestamp() + $5 * interval '1 second',
           resume = null, decision = $8
     where id = $1 and dispatch_id = $2 and coalesce(state, '') = 'running' and (select waiting @> $22 from probe)
       and (select count >= 0 from first)
 returning id, dag_run_id, pool, pool_slots, queue
), stored as (
    insert into xcom (task_instance_id, key, value) select id, 'return_value', $6 from done where $6 is not null
    on conflict (task_instance_id, key) do update set value = excluded.value, created_at = now()
), around as (
    select done.dag_run_id, done.pool, done.pool_slots, done.queue, r.state = 'running' and r.version_id = $9 as run_goes_on,
           s.is_paused, next.id as first_id, next.rank as first_rank, next.dag_run_id = done.dag_run_id as first_is_ours,
           other.waits is not null as others_wait
      from done
      join dag_run r on r.id = done.dag_run_id
      join dag_schedule s on s.dag_id = r.dag_id
      left join lateral (
           select w.id, w.rank, w.dag_run_id from task_instance w
            where w.pool = done.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit 1) next on true
      left join lateral (  -- from the high end, as in unstarted
           select true as waits from task_instance o
            where o.dag_run_id = done.dag_run_id
              and (o.state is null or o.state in {IDLE.sql})
            order by o.task_no desc limit 1) other on true
), verdict as (
    select b.id, b.state, b.reason,
           b.place = $16 and not a.is_paused and b.pool = a.pool and b.pool_slots <= a.pool_slots
           and (a.first_id is null
                or (not $10 and (b.rank > a.first_rank or (b.rank = a.first_rank and b.id < a.first_id)))) as inherits
      from around a cross join below b
     -- A cleared task below a branch is the scheduler's: it knows what the branch decided.
     where a.run_goes_on and (b.was is null or not b.below_branch)
     order by b.id
), moved as (
    update task_instance t
       set state = case when v.inherits then 'queued' else v.state end,
           reason = v.reason,
           try_number = t.try_number + case when v.state = 'scheduled' then 1 else 0 end,
           scheduled_at = case when v.state = 'scheduled' then clock_timestamp() end,
           queued_at = case when v.inherits then clock_timestamp() end,
           queued_by = case when v.inherits then $7 end,
           dispatch_id = case when v.inherits then $17 end,
           ended_at = case when v.state in {NEVER_RUN.sql} then clock_timestamp() end
      from verdict v
     where t.id = v.id and coalesce(t.state, '') = ''
 returning t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool,
           t.pool_slots, t.rank
), line as (  -- Those first in line for the pool, and whether each may have these slots without any limit being counted again.
    select w.id, w.rank, bool_and(w.fits) over (order by w.rank desc, w.id) as is_next
      from around a
     cross join lateral (
           select w.id, w.rank, w.dag_run_id = a.dag_run_id and w.queue = a.queue and w.pool_slots <= a.pool_slots
                  and w.max_active_tis_per_dag is null and w.max_active_tis_per_dagrun is null as fits
             from task_instance w
            where w.pool = a.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit 8) w
     where $17 is not null and not $10 and a.first_is_ours and a.run_goes_on and not a.is_paused
       and exists (select from pool p where p.name = a.pool and p.hands_on)
       -- Asked of `moved`, so that this comes after it: whoever holds the next in line waits for nobody any more.
       and not exists (select from moved m
                        where m.dispatch_id is not null
                           or (m.state = 'scheduled' and m.pool = a.pool
                               and (m.rank > a.first_rank or (m.rank = a.first_rank and m.id < a.first_id))))
), next as (  -- Passed over are those that somebody is taking at this moment.
    select t.id from line join task_instance t on t.id = line.id
     -- "coalesce": looked up by id. As `state = 'scheduled'` it would let the planner read the whole line for each.
     where line.is_next and coalesce(t.state, '') = 'scheduled'
     order by line.rank desc, line.id limit 1
       for no key update of t skip locked
), handed as (
    update task_instance t
       set state = 'queued', dispatch_id = $17, queued_at = clock_timestamp(), queued_by = $7, dispatched_at = null
      from next
     where t.id = next.id and coalesce(t.state, '') = 'scheduled'
 returning t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool,
           t.pool_slots
)
select probe.waiting, a.first_id is not null, a.others_wait, m.*
  from probe
  left join around a on true
  left join (select false, id, task_id, map_index, queue, priority_weight, dispatch_id, state, pool, pool_slots from moved
             union all
             select true, id, task_id, map_index, queue, priority_weight, dispatch_id, state, pool, pool_slots from handed) m
    on true;

-- $3 up_for_reschedule or deferred, $4 reason, $5 seconds until due, $6 what the next dispatch goes on from, $7-$9 the trigger.
prepare suspend (bigint, uuid, text, text, double precision, jsonb, text, jsonb, text) as
with done as (
    update task_instance
       set state = $3, reason = $4, due_at = clock_timestamp() + $5 * interval '1 second', resume = $6
     where id = $1 and dispatch_id = $2 and coalesce(state, '') = 'running'
 returning id, dispatch_id, pool
), deferred as (
    insert into deferral as d (task_instance_id, dispatch_id, classpath, kwargs, file)
    select id, dispatch_id, $7, $8, $9 from done where $7 is not null
    on conflict (task_instance_id) do update
       set dispatch_id = excluded.dispatch_id, classpath = excluded.classpath, kwargs = excluded.kwargs, file = excluded.file,
           created_at = now(), waiter = null
)
select exists (select 1 from task_instance w where w.pool = done.pool and w.state = 'scheduled') from done;
"""
