"""The workload of queues: the backlog, its age, how long tasks take, and how many arrive."""

from collections.abc import Sequence

from sqlalchemy import Connection

from paceline.states import STARTED
from scheduler.deciding.worker_count import Workload, service_time
from scheduler.store.queueing.limits import HOLDS, USED_SLOTS, WAITS

#: Ended task instances, of all queues, from which averages are taken. It bounds the cost, whatever the history.
SAMPLE = 2000
#: Seconds after which an ended task instance no longer counts for the average time.
RECENT_S = 3600.0


def of_queues(connection: Connection, queues: Sequence[str], *, window_s: float) -> Workload:
    """Return the workload of these queues together. Arrivals are counted over at most `window_s` seconds."""
    found = connection.exec_driver_sql(
        f"""
        with now as materialized (select clock_timestamp() as at),
        unfinished as materialized (
            select pool, pool_slots, state, worker, started_at, coalesce(scheduled_at, queued_at, started_at) as arrived_at
              from task_instance t where queue = any(%(queues)s) and ({WAITS} or {HOLDS})
        ), sample as materialized (
            select queue, started_at, ended_at, coalesce(scheduled_at, queued_at, started_at) as arrived_at
              from task_instance where ended_at is not null order by ended_at desc limit {SAMPLE}
        ), ended as (
            select * from sample, now
             where queue = any(%(queues)s) and started_at is not null and ended_at > at - make_interval(secs => {RECENT_S})
        ), window_ as (
            -- A full sample may reach back less far than the window.
            select at, greatest(at - make_interval(secs => %(window)s),
                                case when (select count(*) from sample) = {SAMPLE}
                                     then (select min(ended_at) from sample) else '-infinity' end) as since
              from now
        ), arrived as (
            select arrived_at from unfinished union all select arrived_at from ended
        ), by_pool as (
            -- The free slots of a pool are those that task instances of any queue have left.
            select sum(w.waiting)::bigint as waiting,
                   sum(case when p.slots < 0 then w.waiting
                            else least(w.waiting, greatest(0, coalesce(p.slots, 0) - {USED_SLOTS}) / w.each) end)::bigint
                       as startable
              from (select t.pool, count(*) as waiting, min(t.pool_slots) as each from unfinished t where {WAITS} group by 1) w
              left join pool p on p.name = w.pool
        )
        select coalesce((select waiting from by_pool), 0) + count(*) filter (where state = 'queued') as waiting,
               coalesce((select startable from by_pool), 0) + count(*) filter (where state = 'queued') as startable,
               -- A worker that drains takes no task after those that it runs, so they need no other worker.
               count(*) filter (where state in {STARTED.sql} and not exists
                   (select from worker_drain d where d.process_id = unfinished.worker)) as running,
               coalesce(extract(epoch from (select at from now)
                                           - min(arrived_at) filter (where state not in {STARTED.sql})), 0) as oldest_s,
               (select avg(extract(epoch from ended_at - started_at)) from ended) as ended_s,
               avg(extract(epoch from (select at from now) - started_at)) filter (where state in {STARTED.sql}) as running_s,
               (select count(*) filter (where arrived_at > since) / greatest(extract(epoch from max(at - since)), 1)
                  from window_ left join arrived on true) as arrivals_per_s
          from unfinished
        """,
        {"queues": list(queues), "window": window_s},
    ).one()
    return Workload(
        waiting=found.waiting,
        running=found.running,
        startable=int(found.startable),
        oldest_s=round(max(0.0, float(found.oldest_s)), 3),
        service_s=service_time(
            *(None if age is None else round(max(0.0, float(age)), 3) for age in (found.ended_s, found.running_s))
        ),
        arrivals_per_s=round(float(found.arrivals_per_s), 4),
    )
