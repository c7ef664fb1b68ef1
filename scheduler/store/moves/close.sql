
-- The end of a run whose last task instance has just ended: running -> success, by the pool process that reported it. It moves no
-- task instance, and leaves to a scheduler what needs more than this: another end, a backfill, a newer version, an error.

-- The lock under which schedulers and commands change a run, unless another process has it. `close_run` begins when it is held, so
-- it sees every task instance as the transactions before left it; without the lock it does nothing.
\set dag_run_id $1::bigint
prepare hold_run as
with held as materialized (
    select id from dag_run where id = :dag_run_id and coalesce(state, '') = 'running' for no key update skip locked
)
select set_config('paceline.held_run', id::text, true) from held;

\set dag_run_id $1::bigint
prepare close_run as
update dag_run r set state = 'success', ended_at = clock_timestamp()
  from dag d
 where r.id = :dag_run_id and coalesce(r.state, '') = 'running' and current_setting('paceline.held_run', true) = r.id::text
   and r.backfill_id is null and r.requested_state is null and r.scheduling_error is null
   and d.dag_id = r.dag_id and d.version_id = r.version_id
   -- Two conditions: an index has the unfinished ones, and the run is read as a whole only at its end.
   and not exists (select from task_instance t
                    where t.dag_run_id = r.id
                      and (t.state is null or t.state in ('scheduled', 'queued', 'running', 'up_for_retry', 'up_for_reschedule',
                                                          'deferred', 'shutdown')))
   and not exists (select from task_instance t where t.dag_run_id = r.id and t.state in ('failed', 'upstream_failed'));

-- After the commit: whether the run goes on, and whether a run of its DAG may now begin. A process that creates one meanwhile
-- either commits before this reads, or sends its wakeup after the end of this run.
\set dag_run_id $1::bigint
prepare look_after as
select r.state,
       exists (select from task_instance t
                where t.dag_run_id = r.id
                  and (t.state is null or t.state in ('scheduled', 'queued', 'running', 'up_for_retry', 'up_for_reschedule',
                                                      'deferred', 'shutdown'))) as goes_on,
       exists (select from dag_run q where q.dag_id = r.dag_id and q.state = 'queued')
       or exists (select from dag_schedule s
                   where s.dag_id = r.dag_id and not s.is_paused and s.next_run_after <= clock_timestamp()) as others_wait
  from dag_run r where r.id = :dag_run_id;
