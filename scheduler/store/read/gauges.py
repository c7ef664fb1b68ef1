"""The gauges of the whole installation, read in one query, each as the name of a metric of scheduler/telemetry/catalog.py."""

from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.states import ACTIVE, RUN_UNFINISHED, STARTED, WAITS_FOR_WORKER, States, TaskState
from scheduler.store.db import rows
from scheduler.store.db.clock import TIMEOUT_OF_KIND, alive
from scheduler.store.queueing.limits import DEFERRED, IN_POOL, WAITS


@dataclass(frozen=True, slots=True)
class Gauge:
    """The value of a metric for these values of its labels."""

    metric: str
    labels: list[str]
    value: float


#: Partial indexes have the task instances in these, so that finished ones cost nothing.
COUNTED_LIVE = States(ACTIVE | {TaskState.SCHEDULED})
READ = f"""
with open as materialized (
    select t.dag_run_id, t.task_id, t.queue, t.pool, case t.state when 'shutdown' then 'running' else t.state end as state,
           count(*) as instances, sum(t.pool_slots) as slots, min(coalesce(t.scheduled_at, t.queued_at)) as since
      from task_instance t where t.state in {COUNTED_LIVE.sql} group by 1, 2, 3, 4, 5
), by_pool as (
    select *, slots - used as free
      from (select p.name, p.slots,
                   coalesce(sum(t.slots) filter (where t.state = 'queued'), 0) as queued,
                   coalesce(sum(t.slots) filter (where t.state = 'running'), 0) as running,
                   coalesce(sum(t.slots) filter (where {DEFERRED}), 0) as deferred,
                   coalesce(sum(t.slots) filter (where {WAITS}), 0) as scheduled,
                   coalesce(sum(t.instances) filter (where {WAITS}), 0) as waiting,
                   coalesce(sum(t.slots) filter (where {IN_POOL}), 0) as used
              from pool p left join open t on t.pool = p.name group by p.name, p.slots) u
), alive as materialized (
    select id, kind, name, queues, concurrency, stopped_at,
           {alive(TIMEOUT_OF_KIND)} as is_alive
      from process p where stopped_at is null or stopped_at > clock_timestamp() - interval '10 minutes'
), held as (
    select worker, count(*) as tasks from task_instance where state in {STARTED.sql} group by 1
), of_queue as (
    select q.name, count(*) as workers, sum(a.concurrency) as places
      from alive a cross join unnest(a.queues) q (name) where a.kind = 'worker' and a.is_alive group by 1
), unfinished as (
    select count(*) filter (where state = 'queued') as queued, count(*) filter (where state = 'running') as running
      from dag_run where state in {RUN_UNFINISHED.sql}
), samples (metric, labels, value) as (
    select 'ti.' || o.state, array[o.queue, r.dag_id, o.task_id], sum(o.instances)
      from open o join dag_run r on r.id = o.dag_run_id group by o.state, 2
    union all
    select m.metric, array[p.name], m.value
      from by_pool p cross join lateral (values
           ('pool.open_slots', case when p.slots < 0 then -1 else greatest(p.free, 0) end),
           ('pool.used_slots', p.used), ('pool.queued_slots', p.queued), ('pool.running_slots', p.running),
           ('pool.deferred_slots', p.deferred), ('pool.scheduled_slots', p.scheduled),
           ('pool.starving_tasks', case when p.slots >= 0 and p.free <= 0 then p.waiting else 0 end)) m (metric, value)
    union all
    select 'scheduler.tasks.starving', '{{}}', coalesce(sum(waiting) filter (where slots >= 0 and free <= 0), 0) from by_pool
    union all
    select m.metric, '{{}}', m.value
      from (select coalesce(sum(instances) filter (where state = 'queued'), 0) as queued,
                   coalesce(sum(instances) filter (where state = 'running'), 0) as running from open) o
      cross join (select coalesce(sum(concurrency), 0) as places from alive where kind = 'worker' and is_alive) a
      cross join lateral (values ('executor.queued_tasks', o.queued), ('executor.running_tasks', o.running),
                                 ('executor.open_slots', greatest(a.places - o.running, 0))) m (metric, value)
    union all
    select 'paceline.dag_runs', array[m.state], m.runs
      from unfinished u cross join lateral (values ('queued', u.queued), ('running', u.running)) m (state, runs)
    union all
    select 'scheduler.dagruns.running', '{{}}', running from unfinished
    union all
    select 'dagbag_size', '{{}}', count(*) from dag where is_active
    union all
    select 'dag_processing.import_errors', '{{}}', count(*) from import_error
    union all
    select m.metric, '{{}}', m.value
      from (select count(*) filter (where next_parse_at <= clock_timestamp()) as due, coalesce(sum(duration_s), 0) as took
              from dag_file) f
      cross join lateral (values ('dag_processing.file_path_queue_size', f.due::float8),
                                 ('dag_processing.total_parse_time', f.took)) m (metric, value)
    union all
    select m.metric, array[f.name], m.value
      from (select regexp_replace(path, '^.*/|\\.py$', '', 'g') as name, max(duration_s) as took,
                   extract(epoch from clock_timestamp() - max(parsed_at)) as ago
              from dag_file where parsed_at is not null group by 1) f
      cross join lateral (values ('dag_processing.last_runtime', f.took),
                                 ('dag_processing.last_run.seconds_ago', f.ago)) m (metric, value)
    union all
    select 'paceline.processes', array[a.kind, s.state], count(*) filter (where a.is_alive = (s.state = 'alive'))
      from alive a cross join unnest(array['alive', 'silent']) s (state) where a.stopped_at is null group by a.kind, s.state
    union all
    select 'paceline.queue.oldest_waiting_seconds', array[queue], extract(epoch from clock_timestamp() - min(since))
      from open where state in {WAITS_FOR_WORKER.sql} group by queue
    union all
    select m.metric, array[q.name], m.value
      from of_queue q cross join lateral (values
           ('paceline.queue.places', q.places), ('celery_active_process_count', q.places),
           ('celery_active_worker_count', q.workers), ('celery_active_consumer_count', q.workers)) m (metric, value)
    union all
    select 'celery_queue_length', array[coalesce(o.queue, q.name)], coalesce(o.queued, 0)
      from of_queue q
      full join (select queue, coalesce(sum(instances) filter (where state = 'queued'), 0) as queued from open group by 1) o
        on o.queue = q.name
    union all
    select m.metric, array[a.name], m.value
      from (select a.name, bool_or(a.is_alive)::int as up, coalesce(sum(h.tasks), 0) as tasks
              from alive a left join held h on h.worker = a.id where a.kind = 'worker' group by a.name) a
      cross join lateral (values ('celery_worker_up', a.up), ('celery_worker_tasks_active', a.tasks)) m (metric, value)
    union all
    select 'paceline.notices_pending', '{{}}', count(*) from notice where ended_at is null
)
select metric, labels, value::float8 as value from samples
"""


def read(connection: Connection, *, worker_s: float, waiter_s: float, scheduler_s: float) -> list[Gauge]:
    """All gauges. The arguments are the seconds without a heartbeat after which a process of each kind counts as silent."""
    found = connection.exec_driver_sql(READ, {"worker": worker_s, "waiter": waiter_s, "scheduler": scheduler_s})
    return rows.of_result(Gauge, found)
