"""How the installation does: live processes, what workers run, the backlogs, depth and workload of queues, the line of a pool,
how runs end, and the task instances that can never run.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from paceline.states import HOLDS_SLOTS, OPEN, RUN_UNFINISHED, STARTED, WAITS_FOR_WORKER, States, TaskState
from scheduler.deciding.worker_count import Workload, service_time
from scheduler.store.db import rows
from scheduler.store.db.clock import ALIVE, LIVE_WORKER, SILENT, alive
from scheduler.store.queueing.limits import HOLDS, IN_POOL, USED_SLOTS, WAITING_INSTANCES, WAITS
from scheduler.store.read.listing import Filters, Listing, Row, key

#: A task instance in one of these uses its queue, now or soon.
LOADS_QUEUE = States(WAITS_FOR_WORKER | {TaskState.RUNNING})
#: A task instance in one of these or in NONE needs slots of its pool, or has them.
NEEDS_POOL = States(OPEN - {TaskState.DEFERRED})
#: Whether the report of queues may change: task instances wait or run, or a worker is new; see store/upkeep/pending_work.
PENDING = f"""
    exists (select from task_instance where state in {HOLDS_SLOTS.sql})
    or exists (select from task_instance where state = 'scheduled')
    or exists (select from process where kind = 'worker' and stopped_at is null
                  and started_at > clock_timestamp() - make_interval(secs => $1))
"""


def processes(connection: Connection, *, kind: str | None, silent_after_s: float, stopped: bool = False) -> list[Row]:
    """Processes of a kind (None: all) that have not stopped (with `stopped`, all): `state` is alive, silent or stopped."""
    found = connection.exec_driver_sql(
        f"""
        select p.id, p.name, p.kind, p.host, p.pid, p.queues, p.concurrency, p.started_at, p.heartbeat_at, p.stopped_at,
               d.at as drain_at,
               case when p.stopped_at is not null then 'stopped'
                    when {SILENT} then 'silent'
                    else 'alive' end as state,
               (select count(*) from task_instance t
                 where t.state in {STARTED.sql} and t.worker = p.id) as running
          from process p left join worker_drain d on d.process_id = p.id
         where (%(kind)s::text is null or p.kind = %(kind)s) and (p.stopped_at is null or %(stopped)s)
         order by p.kind, p.name, p.started_at
        """,
        {"kind": kind, "silent": silent_after_s, "stopped": stopped},
    )
    return rows.dicts(found)


def queues(connection: Connection, *, silent_after_s: float) -> list[Row]:
    """Every queue with task instances or live workers: its scheduled, queued and running task instances, since when the oldest
    has waited, and its live workers with their concurrency.
    """
    found = connection.exec_driver_sql(
        f"""
        with listening as (
            select unnest(queues) as queue, count(*) as workers, sum(concurrency) as concurrency,
                   array_agg(name order by name) as worker_names
              from process p where {LIVE_WORKER} group by 1
        ), work as (
            select queue, count(*) filter (where state = 'scheduled') as scheduled,
                   count(*) filter (where state = 'queued') as queued,
                   count(*) filter (where state = 'running') as running,
                   min(coalesce(scheduled_at, queued_at)) filter (where state in {WAITS_FOR_WORKER.sql}) as oldest_waiting_at
              from task_instance where state in {LOADS_QUEUE.sql} group by 1
        )
        select queue, coalesce(scheduled, 0) as scheduled, coalesce(queued, 0) as queued,
               coalesce(running, 0) as running, coalesce(workers, 0) as workers, coalesce(concurrency, 0) as concurrency,
               coalesce(worker_names, '{{}}') as worker_names, oldest_waiting_at
          from work full join listening using (queue) order by queue
        """,
        {"silent": silent_after_s},
    )
    return rows.dicts(found)


def missing_pools(connection: Connection) -> list[Row]:
    """Pools that unfinished task instances need but that do not exist, with the number of task instances that wait for each."""
    found = connection.exec_driver_sql(
        f"""
        select t.pool, count(*) as task_instances, min(r.dag_id) as dag_id
          from task_instance t join dag_run r on r.id = t.dag_run_id
         where {NEEDS_POOL.or_none("t.state")}
           and r.state in {RUN_UNFINISHED.sql} and not exists (select 1 from pool p where p.name = t.pool)
         group by t.pool order by t.pool
        """
    )
    return rows.dicts(found)


def dag_warnings(connection: Connection, dag_id: str | None = None) -> list[Row]:
    """Names in a DAG, or in all active DAGs, that are probably typos, and stored variables that their files ignore.

    The typos are pools that do not exist, and queues that no worker has ever listened to. A queue is known if a pool or a worker
    names it, even one that has stopped. Without any worker, queues are not checked.
    """
    found = connection.exec_driver_sql(
        """
        with named as (
            select distinct d.dag_id, d.file, d.parsed_at, t->>'pool' as pool, t->>'queue' as queue
              from dag d join dag_version v on v.id = d.version_id
             cross join jsonb_array_elements(v.data->'tasks') t
             where d.is_active and (%(dag_id)s::text is null or d.dag_id = %(dag_id)s)
        ), known as (
            select distinct unnest(queues) as queue from process where kind = 'worker'
             union select queue from pool
        )
        select distinct dag_id, file, parsed_at, 'non-existent pool' as warning_type,
               'The pool ' || quote_literal(pool) || ' does not exist: its tasks wait until it is created.' as message
          from named n where pool is not null and not exists (select from pool p where p.name = n.pool)
         union all
        select distinct dag_id, file, parsed_at, 'unknown queue',
               'No worker listens to the queue ' || quote_literal(queue) || ': its tasks wait for one.'
          from named n where queue is not null and exists (select from process where kind = 'worker')
           and not exists (select from known k where k.queue = n.queue)
         union all
        select d.dag_id, d.file, d.parsed_at, 'ignored variable',
               'The variable ' || quote_literal(s.key) || ' is stored, but the file takes its default, because loading a DAG file'
               ' reads no database: set PACELINE_VAR_' || upper(s.key) || ' for schedulers and workers, or read it in a task.'
          from dag d join dag_version v on v.id = d.version_id
          join variable s on v.data->'defaulted_variables' @> to_jsonb(s.key)
         where d.is_active and (%(dag_id)s::text is null or d.dag_id = %(dag_id)s)
         order by 1, 4, 5
        """,
        {"dag_id": dag_id},
    )
    return rows.dicts(found)


def oversized(connection: Connection) -> list[Row]:
    """Scheduled task instances that need more slots than their pool has in total."""
    found = connection.exec_driver_sql(
        """
        select r.dag_id, r.run_id, t.task_id, t.pool, t.pool_slots, p.slots
          from task_instance t join dag_run r on r.id = t.dag_run_id join pool p on p.name = t.pool
         where t.state = 'scheduled' and p.slots >= 0 and t.pool_slots > p.slots
         order by t.pool, t.id limit 20
        """
    )
    return rows.dicts(found)


def undecidable(connection: Connection) -> list[Row]:
    """Running runs that the schedulers cannot decide, with the reason."""
    found = connection.exec_driver_sql(
        """
        select dag_id, run_id, scheduling_error from dag_run
         where scheduling_error is not null and state = 'running' order by id
        """
    )
    return rows.dicts(found)


def server_version(connection: Connection) -> str:
    """The version of the PostgreSQL server."""
    return str(connection.exec_driver_sql("show server_version").scalar_one())


def data_directory(connection: Connection) -> str | None:
    """The data directory of the server; None if this role may not read it."""
    found = connection.exec_driver_sql("select setting from pg_settings where name = 'data_directory'").scalar()
    return None if found is None else str(found)


PROCESSES = Listing(
    columns=f"""
        {key("p.id")} as number, p.id, p.kind, p.name, p.host, p.pid, p.queues, p.concurrency, p.started_at, p.heartbeat_at,
        p.stopped_at, case when p.stopped_at is not null then 'success' when {SILENT} then 'failed' else 'running' end as state
    """,
    tables="process p",
    orders={"id": "p.started_at", "start_date": "p.started_at", "end_date": "p.stopped_at", "latest_heartbeat": "p.heartbeat_at",
            "job_type": "p.kind", "hostname": "p.host", "state": "p.stopped_at", "dag_id": "p.kind",
            "executor_class": "p.kind", "unixname": "p.host"},
    filtered={"kind": "p.kind", "host": "p.host"},
    default_order=("start_date",),
    key="p.id",
)  # fmt: skip
#: The condition of each of Airflow's job states.
JOB_STATES = {"success": "p.stopped_at is not null", "running": ALIVE, "failed": SILENT}
#: For the timeout `k.silent` of a kind of processes.
ALIVE_OF_KIND = alive("k.silent")
#: Task instances listed for a pool or a worker.
MOST_LISTED = 200
HELD = """
    r.dag_id, r.run_id, t.task_id, t.map_index, t.state, t.try_number, t.scheduled_at, t.queued_at, t.started_at, t.pool,
    t.pool_slots, t.worker
"""
RUNNING = f"""
select {HELD} from task_instance t join dag_run r on r.id = t.dag_run_id
 where t.state in {STARTED.sql} and t.worker = any(%s) order by t.started_at
"""
#: Tags with the most runs.
MOST_TAGS = 12


def process_filters(silent_after_s: float, *, alive: bool | None = None, state: str | None = None) -> Filters:
    """Schedulers, workers and waiters that are alive or not, or in one of Airflow's job states."""
    filters = PROCESSES.filters()
    filters.parameters["silent"] = silent_after_s
    if alive is not None:
        filters.where(ALIVE if alive else f"not ({ALIVE})")
    return filters if state is None else filters.where(JOB_STATES.get(state, "false"))


def heartbeats(connection: Connection, silent_after_s: dict[str, float]) -> dict[str, Row]:
    """By kind of process: the newest heartbeat, and whether one is alive."""
    found = connection.exec_driver_sql(
        f"""
        select k.kind, max(p.heartbeat_at) as heartbeat_at,
               coalesce(bool_or({ALIVE_OF_KIND}), false) as alive
          from unnest(%s::text[], %s::float[]) k (kind, silent) left join process p on p.kind = k.kind group by 1
        """,
        (list(silent_after_s), list(silent_after_s.values())),
    )
    return {row["kind"]: row for row in rows.dicts(found)}


def running(connection: Connection, worker_ids: Collection[str]) -> dict[str, list[Row]]:
    """The task instances that these workers run, the longest first."""
    found: dict[str, list[Row]] = {}
    for row in rows.dicts(connection.exec_driver_sql(RUNNING, (list(worker_ids),))):
        found.setdefault(row["worker"], []).append(row)
    return found


def line(connection: Connection, pool: str) -> Row:
    """The task instances that hold slots of a pool, and those that wait for slots. NotFoundError."""
    found = connection.exec_driver_sql(
        f"""
        select p.name, p.slots, {USED_SLOTS} as used, {WAITING_INSTANCES} as waiting_count
          from pool p where p.name = %s
        """,
        (pool,),
    )
    own = rows.first_dict(found)
    if own is None:
        raise NotFoundError(f"There is no pool {pool!r}.")
    holders = rows.dicts(
        connection.exec_driver_sql(
            f"select {HELD} from pool p join task_instance t on t.pool = p.name join dag_run r on r.id = t.dag_run_id"
            f" where p.name = %s and {IN_POOL} order by t.queued_at limit {MOST_LISTED}",
            (pool,),
        )
    )
    waiting = rows.dicts(
        connection.exec_driver_sql(
            f"select {HELD} from task_instance t join dag_run r on r.id = t.dag_run_id"
            f" where t.pool = %s and {WAITS} order by t.rank desc, t.id limit {MOST_LISTED}",
            (pool,),
        )
    )
    return {**own, "holders": holders, "waiting": waiting}


def depths(connection: Connection, *, queue: str | None, hours: float, minutes: int) -> list[Row]:
    """The depth of queues in the last hours: for each `minutes` the highest values."""
    found = connection.exec_driver_sql(
        """
        select queue, date_bin(make_interval(mins => %(minutes)s), at, timestamptz 'epoch') as at, max(scheduled) as scheduled,
               max(queued) as queued, max(running) as running, max(places) as places
          from queue_depth
         where at >= statement_timestamp() - make_interval(secs => %(seconds)s) and (%(queue)s::text is null or queue = %(queue)s)
         group by 1, 2 order by 2, 1
        """,
        {"queue": queue, "seconds": hours * 3600, "minutes": minutes},
    )
    return rows.dicts(found)


def trend(connection: Connection, filters: Filters, *, since: datetime, bar_hours: int, bars: int) -> list[Row]:
    """The number of runs that ended in each bar, by its start and by state: with `tag` None of all DAGs, then of each tag."""
    filters.where("r.ended_at >= w.since and r.ended_at < w.since + make_interval(secs => w.bar_s * w.bars)")
    where = f"where {' and '.join(filters.conditions)}"
    found = connection.exec_driver_sql(
        f"""
        with wanted as (select %(since)s::timestamptz as since, %(bar_s)s::int as bar_s, %(bars)s::int as bars
        ), ended as materialized (
            select r.dag_id, date_bin(make_interval(secs => w.bar_s), r.ended_at, w.since) as start, r.state, count(*) as count
              from dag_run r cross join wanted w {where} group by 1, 2, 3
        ), tagged as (
            select d.dag_id, jsonb_array_elements_text(v.data->'tags') as tag
              from (select distinct dag_id from ended) e join dag d using (dag_id) join dag_version v on v.id = d.version_id
        ), most as (
            select tag from tagged join ended using (dag_id) group by 1 order by sum(count) desc, 1 limit {MOST_TAGS}
        )
        select null as tag, start, state, sum(count)::bigint as count from ended group by 2, 3
         union all
        select tag, start, state, sum(count)::bigint from ended join tagged using (dag_id) join most using (tag) group by 1, 2, 3
         order by 1 nulls first, 2
        """,
        filters.parameters | {"since": since, "bar_s": bar_hours * 3600, "bars": bars},
    )
    return rows.dicts(found)


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
