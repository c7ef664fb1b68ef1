"""How the installation does: its processes, what workers run, the line of a pool, the depth of queues, and how runs ended."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from paceline.states import STARTED
from scheduler.store.db import rows
from scheduler.store.db.clock import ALIVE, SILENT, alive
from scheduler.store.queueing.limits import IN_POOL, USED_SLOTS, WAITING_INSTANCES, WAITS
from scheduler.store.read.listing import Filters, Listing, Row, key

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
