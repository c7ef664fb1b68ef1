"""Queries on the whole installation: live processes, backlogs of queues, and task instances that can never run."""

from sqlalchemy import Connection

from paceline.states import HOLDS_SLOTS, OPEN, RUN_UNFINISHED, STARTED, WAITS_FOR_WORKER, States, TaskState
from scheduler.store.db import rows
from scheduler.store.db.clock import LIVE_WORKER, SILENT
from scheduler.store.read.listing import Row

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
