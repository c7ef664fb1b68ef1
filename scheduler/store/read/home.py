"""The state of the whole installation: runs, waiting task instances with their reasons, and deadlines."""

from collections.abc import Collection

from sqlalchemy import Connection

from paceline.states import OPEN, RUN_UNFINISHED, WAITS_FOR_WORKER
from scheduler.deciding import waits, why
from scheduler.deciding.limits import RUNS
from scheduler.deciding.waits import Contention, LimitFacts, PoolFacts, QueueFacts
from scheduler.settings import Settings
from scheduler.store.db import rows
from scheduler.store.queueing import pools
from scheduler.store.queueing.limits import MOST_RUNS, SHARES_RUNS
from scheduler.store.read import operations
from scheduler.store.read.listing import Filters, Row
from scheduler.store.read.requests import REQUEST, RESPONSE

#: Rows of each list.
MOST = 20
#: Pools and queues with waiting task instances.
MOST_GROUPS = 200
#: A deadline that is due within this time, in seconds, is at risk.
SOON_S = 3600.0
RUN_COLUMNS = "r.dag_id, r.run_id, r.run_type, r.state, r.run_after, r.started_at, r.ended_at"


def filters() -> Filters:
    """No condition on runs yet."""
    return Filters({"dag_id": "r.dag_id"})


def open_runs(connection: Connection, filters: Filters) -> list[Row]:
    """The number of queued and of running runs."""
    where = _and(filters, f"r.state in {RUN_UNFINISHED.sql}")
    return rows.dicts(
        connection.exec_driver_sql(f"select r.state, count(*) as count from dag_run r {where} group by 1", filters.parameters)
    )


def open_instances(connection: Connection, filters: Filters) -> list[Row]:
    """The number of open task instances by state."""
    join, where = _joined(filters, f"t.state in {OPEN.sql}")
    found = connection.exec_driver_sql(
        f"select t.state, count(*) as count from task_instance t {join} {where} group by 1", filters.parameters
    )
    return rows.dicts(found)


def last_day(connection: Connection, filters: Filters) -> list[Row]:
    """The number of runs that ended in each of the last 24 hours, by state."""
    where = _and(filters, "r.ended_at > date_trunc('hour', statement_timestamp()) - interval '23 hours'")
    found = connection.exec_driver_sql(
        f"select date_trunc('hour', r.ended_at) as hour, r.state, count(*) as count"
        f" from dag_run r {where} group by 1, 2 order by 1",
        filters.parameters,
    )
    return rows.dicts(found)


def failed_runs(connection: Connection, filters: Filters) -> list[Row]:
    """The runs that failed last, within 24 hours, with their first failed task."""
    where = _and(filters, "r.ended_at > statement_timestamp() - interval '1 day' and r.state = 'failed'")
    found = connection.exec_driver_sql(
        f"""
        select {RUN_COLUMNS}, f.task_id, f.map_index, f.reason from dag_run r
          left join lateral (select t.task_id, t.map_index, t.reason from task_instance t
                              where t.dag_run_id = r.id and t.state = 'failed' order by t.ended_at limit 1) f on true
         {where} order by r.ended_at desc limit {MOST}
        """,
        filters.parameters,
    )
    return rows.dicts(found)


def running_runs(connection: Connection, filters: Filters) -> list[Row]:
    """Running runs, the longest first, with the number of their task instances that ended and of all."""
    where = _and(filters, "r.state = 'running'")
    found = connection.exec_driver_sql(
        f"""
        select {RUN_COLUMNS}, c.ended, c.total from (
               select r.* from dag_run r {where} order by r.started_at limit {MOST}) r
          cross join lateral (select count(t.ended_at) as ended, count(*) as total
                                from task_instance t where t.dag_run_id = r.id) c
         order by r.started_at
        """,
        filters.parameters,
    )
    return rows.dicts(found)


def deadlines(connection: Connection, filters: Filters) -> list[Row]:
    """Deadlines of unfinished runs that are due soon or were missed, the most urgent first."""
    soon = filters.parameter(SOON_S)
    where = _and(filters, f"r.state in {RUN_UNFINISHED.sql} and d.due_at < statement_timestamp() + make_interval(secs => {soon})")
    found = connection.exec_driver_sql(
        f"""
        select r.dag_id, r.run_id, r.state, d.kind, d.due_at, d.missed_at, t.task_id
          from dag_run r join deadline d on d.dag_run_id = r.id
          left join task_instance t on t.dag_run_id = r.id and t.task_no = d.task_no and d.task_no >= 0 and t.map_index <= 0
         {where} order by d.due_at limit {MOST}
        """,
        filters.parameters,
    )
    return rows.dicts(found)


def next_runs(connection: Connection, tags: Collection[str] | None) -> list[Row]:
    """The next scheduled runs of DAGs that are not paused, the first of all first."""
    filters = Filters({"dag_id": "s.dag_id"}).visible(tags)
    where = _and(filters, "not s.is_paused and s.next_run_after is not null and d.is_active")
    found = connection.exec_driver_sql(
        f"""
        select s.dag_id, s.next_run_after as run_after, s.next_logical_date as logical_date
          from dag_schedule s join dag d on d.dag_id = s.dag_id {where} order by s.next_run_after, s.dag_id limit {MOST}
        """,
        filters.parameters,
    )
    return rows.dicts(found)


def waiting(connection: Connection, filters: Filters, settings: Settings) -> list[Row]:
    """Scheduled and queued task instances by pool, queue and state, with the reason why they wait, the oldest first."""
    join, where = _joined(filters, f"t.state in {WAITS_FOR_WORKER.sql}", always=True)
    found = connection.exec_driver_sql(
        f"""
        select t.pool, t.queue, t.state, t.state = 'scheduled' and coalesce(s.is_paused, false) as is_paused,
               count(*) as count, min(coalesce(t.scheduled_at, t.queued_at)) as oldest_at
          from task_instance t {join} left join dag_schedule s on s.dag_id = r.dag_id {where}
         group by 1, 2, 3, 4 order by 6 limit {MOST_GROUPS}
        """,
        filters.parameters,
    )
    known = {
        row["name"]: PoolFacts(name=row["name"], slots=row["slots"], used=row["used_slots"]) for row in pools.pools(connection)
    }
    queues = {
        row["queue"]: QueueFacts(
            name=row["queue"],
            workers=row["workers"],
            places=row["concurrency"],
            running=row["running"],
            queued=row["queued"],
            prefetch_window=settings.scheduler.prefetch_window,
        )
        for row in operations.queues(connection, silent_after_s=settings.worker.heartbeat_timeout)
    }
    return [row | _not_running(row, known.get(row["pool"]), queues.get(row["queue"])) for row in rows.dicts(found)]


def questions(connection: Connection, filters: Filters) -> list[Row]:
    """Questions of tasks without an answer, the oldest first, each with the number of all."""
    where = _and(filters, f"t.state in {OPEN.sql} and a.key is null")
    found = connection.exec_driver_sql(
        f"""
        select r.dag_id, r.run_id, t.task_id, t.map_index, q.value->>'subject' as subject, q.updated_at as asked_at,
               count(*) over () as total
          from task_instance t join dag_run r on r.id = t.dag_run_id
          join task_state q on q.task_instance_id = t.id and q.key = '{REQUEST}'
          left join task_state a on a.task_instance_id = t.id and a.key = '{RESPONSE}'
                and (a.expires_at is null or a.expires_at > statement_timestamp())
         {where} order by q.updated_at limit {MOST}
        """,
        filters.parameters,
    )
    return rows.dicts(found)


def waiting_runs(connection: Connection, filters: Filters) -> list[Row]:
    """Queued runs by DAG and backfill, with the reason why they have not started."""
    where = _and(filters, "r.state = 'queued'")
    found = rows.dicts(
        connection.exec_driver_sql(
            f"""
            select r.*, coalesce(s.is_paused, false) as is_paused, coalesce(b.is_paused, false) as backfill_is_paused,
                   {MOST_RUNS} as "limit", (select count(*) from dag_run o where o.state = 'running' and {SHARES_RUNS}) as active
              from (select r.dag_id, r.backfill_id, count(*) as count, min(r.queued_at) as oldest_at
                      from dag_run r {where} group by 1, 2) r
              join dag d on d.dag_id = r.dag_id join dag_version v on v.id = d.version_id
              left join dag_schedule s on s.dag_id = r.dag_id left join backfill b on b.id = r.backfill_id
             order by r.count desc limit {MOST}
            """,
            filters.parameters,
        )
    )
    return [row | {"reason": _not_started(row)} for row in found]


def _not_running(row: Row, pool: PoolFacts | None, queue: QueueFacts | None) -> Row:
    """The reason why task instances wait, and what they need that does not exist."""
    is_one = row["count"] == 1
    if row["is_paused"]:
        return {"reason": "Its DAG is paused." if is_one else "Their DAGs are paused.", "needs": None}
    lacks_pool = row["state"] == "scheduled" and pool is None
    needs = "pool" if lacks_pool else "worker" if queue is not None and queue.workers == 0 else None
    if row["state"] == "queued":
        reasons = waits.no_worker(queue) or waits.busy(queue) or [f"{'It is' if is_one else 'They are'} in queue {row['queue']!r}."]
    else:
        reasons = waits.in_line(Contention(pool_name=row["pool"], pool=pool, queue=queue))
    they, dags = ("It waits", "its DAG") if is_one else ("They wait", "their DAGs")
    reason = " ".join(reasons) or f"{they} for a free place in queue {row['queue']!r}, or a limit of {dags} is reached."
    return {"reason": reason, "needs": needs}


def _not_started(row: Row) -> str:
    limit = LimitFacts(name=RUNS, limit=row["limit"], active=row["active"])
    if row["is_paused"]:
        return "The DAG is paused."
    if row["backfill_is_paused"]:
        return why.backfill_paused(row["backfill_id"])
    if limit.reached:
        they = "It has" if row["count"] == 1 else "They have"
        return f"{they} not started: {waits.running_runs(limit, row['backfill_id'])}."
    return "A scheduler starts it soon." if row["count"] == 1 else "A scheduler starts them soon."


def _and(filters: Filters, condition: str) -> str:
    return f"where {' and '.join([condition, *filters.conditions])}"


def _joined(filters: Filters, condition: str, *, always: bool = False) -> tuple[str, str]:
    """A join with runs if the filters need it, and the condition."""
    join = "join dag_run r on r.id = t.dag_run_id" if filters.conditions or always else ""
    return join, _and(filters, condition)
