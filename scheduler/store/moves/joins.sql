
-- What a report asks about joins: downstream tasks that several tasks decide together. `tasks` has one element for each range,
-- from `lows` to `highs`, of the numbers of their upstream tasks.

-- The tasks with an upstream task that no worker has yet, as the probe of report.sql reads them.
-- It reads from the high end: tasks are queued from the low end, so the first row met is nearly always the answer.
\set dag_run_id $1::bigint \set tasks $2::int[] \set lows $3::int[] \set highs $4::int[]
prepare unstarted as
select distinct n.task_no
  from unnest(:tasks, :lows, :highs) n (task_no, low, high)
 cross join lateral (
       select 1 from task_instance t
        where t.dag_run_id = :dag_run_id and t.task_no between n.low and n.high
          and (t.state is null or t.state in ('scheduled', 'queued', 'up_for_retry', 'up_for_reschedule', 'deferred'))
        order by t.task_no desc limit 1) found;

-- Whether one of the tasks is undecided although all its upstream tasks have ended, or nothing in the run waits any more.
\set dag_run_id $1::bigint \set tasks $2::int[] \set lows $3::int[] \set highs $4::int[]
prepare needs_scheduler as
with unfinished as (
    select n.task_no
      from unnest(:tasks, :lows, :highs) n (task_no, low, high)
     cross join lateral (
           select 1 from task_instance t
            where t.dag_run_id = :dag_run_id and t.task_no between n.low and n.high
              and (t.state is null or t.state not in ('success', 'failed', 'upstream_failed', 'skipped', 'removed'))
            order by t.task_no desc limit 1) found
)
select exists (select 1 from task_instance t
                where t.dag_run_id = :dag_run_id and t.task_no = any(:tasks) and t.state is null
                  and t.task_no not in (select task_no from unfinished))
    or not exists (select 1 from task_instance t
                    where t.dag_run_id = :dag_run_id and (t.state is null or t.state in ('scheduled', 'queued',
                          'up_for_retry', 'up_for_reschedule', 'deferred'))
                    order by t.task_no desc limit 1);

-- The last two siblings must not each see the other as unfinished: the second to get these locks sees the result of the first.
\set ti_id $1::bigint \set dag_run_id $2::bigint \set tasks $3::int[] \set map_index $4::int
prepare lock_joins as
select id from task_instance
 where id = any (array (select :ti_id union all
                        select t.id from task_instance t
                         where t.dag_run_id = :dag_run_id and t.task_no = any(:tasks) and t.map_index in (-1, :map_index)))
 order by id for no key update;

-- The number of upstream task instances of each join by state, without the reported one.
\set ti_id $1::bigint \set dag_run_id $2::bigint \set tasks $3::int[] \set lows $4::int[] \set highs $5::int[]
prepare upstream_states as
select n.task_no, coalesce(t.state, 'none') as state, count(*) as instances
  from unnest(:tasks, :lows, :highs) n (task_no, low, high)
  join task_instance t on t.dag_run_id = :dag_run_id and t.task_no between n.low and n.high and t.id <> :ti_id
 group by 1, 2;

-- The instances of these tasks of one mapped group with one map index.
\set dag_run_id $1::bigint \set tasks $2::int[] \set map_index $3::int
prepare peer_states as
select task_no, coalesce(state, 'none') as state
  from task_instance where dag_run_id = :dag_run_id and task_no = any(:tasks) and map_index = :map_index;
