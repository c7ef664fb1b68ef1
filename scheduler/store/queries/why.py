"""What `why` asks the database about one task instance: itself and its run, who else it waits for, what is taken."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection

from scheduler.states import ACTIVE, HOLDS_SLOTS, RUN_UNFINISHED
from scheduler.store.queueing.capacity import BY_AGED_RANK, BY_RANK

Row = dict[str, Any]
#: Holders of a pool that are named; the others are counted.
NAMED = 8


def instance(connection: Connection, ti_id: int, *, silent_after_s: float) -> Row:
    """The task instance with its run, and whether its worker is alive."""
    return _one(
        connection,
        """
        select t.*, clock_timestamp() as now, r.dag_id, r.run_id, r.state as run_state, r.run_after, r.version_id,
               case when r.state = 'running' then r.scheduling_error end as scheduling_error,
               exists (select 1 from process p where p.id = t.worker and p.stopped_at is null
                  and p.heartbeat_at >= clock_timestamp() - make_interval(secs => %(silent)s)) as worker_alive
          from task_instance t join dag_run r on r.id = t.dag_run_id where t.id = %(id)s
        """,
        {"id": ti_id, "silent": silent_after_s},
    )


def run(connection: Connection, dag_run_id: int) -> Row:
    """What lets the run start and go on: its DAG, that DAG's newest version and file, its backfill, the runs before it."""
    return _one(
        connection,
        """
        select coalesce(s.is_paused, false) as is_paused, d.file, e.message as import_error, e.line as import_error_line,
               newest.max_active_runs, b.id as backfill_id, b.is_paused as backfill_paused, b.max_active_runs as backfill_limit,
               (select count(*) from dag_run o where o.dag_id = r.dag_id and o.state = 'running'
                   and o.backfill_id is not distinct from r.backfill_id) as running_runs,
               (select count(*) from dag_run o where o.dag_id = r.dag_id and o.state = 'queued'
                   and o.backfill_id is not distinct from r.backfill_id
                   and case when r.backfill_id is null then (o.run_after, o.id) < (r.run_after, r.id)
                       else o.backfill_ordinal < r.backfill_ordinal end) as runs_ahead
          from dag_run r
          join dag d on d.dag_id = r.dag_id
          join dag_version newest on newest.id = d.version_id
          left join dag_schedule s on s.dag_id = r.dag_id
          left join import_error e on e.file = d.file
          left join backfill b on b.id = r.backfill_id
         where r.id = %(run)s
        """,
        {"run": dag_run_id},
    )


def states(connection: Connection, dag_run_id: int, task_ids: Collection[str], *, map_index: int | None = None) -> dict[str, Row]:
    """By task_id: how many instances are in each state; with `map_index` only of that instance."""
    rows = connection.exec_driver_sql(
        """
        select task_id, jsonb_object_agg(state, n) as states, bool_or(mapped) as mapped from (
               select task_id, coalesce(state, 'none') as state, count(*) as n, bool_or(map_index >= 0) as mapped
                 from task_instance
                where dag_run_id = %(run)s and task_id = any(%(tasks)s)
                  and (%(index)s::int is null or map_index in (-1, %(index)s::int))
                group by 1, 2) t
         group by 1
        """,
        {"run": dag_run_id, "tasks": list(task_ids), "index": map_index},
    )
    return {row["task_id"]: dict(row) for row in rows.mappings()}


def instances(connection: Connection, dag_id: str, run_id: str, task_id: str) -> list[Row]:
    """A task's instances by state: the state, how many, and the smallest map index among them."""
    rows = connection.exec_driver_sql(
        "select coalesce(t.state, 'none') as state, count(*) as count, min(t.map_index) as first"
        " from dag_run r join task_instance t on t.dag_run_id = r.id"
        " where r.dag_id = %s and r.run_id = %s and t.task_id = %s group by 1",
        (dag_id, run_id, task_id),
    )
    return [dict(row) for row in rows.mappings()]


def pool(connection: Connection, ti: Row, *, reserve: bool, aging_s: float = 0) -> Row | None:
    """The pool of a task instance, None if nobody made it; with `reserve` also who of higher rank holds its place in line."""
    rank = BY_AGED_RANK if aging_s else BY_RANK
    key = {"pool": ti["pool"], "id": ti["id"], "aging_s": aging_s}
    rows = connection.exec_driver_sql(
        f"""
        with held as (
            select t.id, t.pool_slots from pool p join task_instance t on t.pool = p.name
             where p.name = %(pool)s
               and (t.state in {HOLDS_SLOTS.sql} or (p.include_deferred and t.state = 'deferred'))
        )
        select p.name, p.slots, (select coalesce(sum(pool_slots), 0)::int from held) as used,
               (select count(*) from held) as holder_count,
               (select count(*) from task_instance t join dag_run r on r.id = t.dag_run_id and r.state = 'running'
                 where t.pool = p.name and t.state = 'scheduled'
                   and {_in_front(rank)}) as ahead
          from pool p where p.name = %(pool)s
        """,
        key,
    )
    found = rows.mappings().first()
    if found is None:
        return None
    free = found["slots"] - found["used"]
    return dict(found) | {
        "holders": _holders(connection, ti["pool"]),
        "reserved_for": _reserved_for(connection, key | {"free": free, "slots": found["slots"]}, rank) if reserve else None,
    }


def limits(connection: Connection, ti: Row) -> Row:
    """How many count towards each limit of a task instance: of its run, of its task there, of its task anywhere, of all."""
    return _one(
        connection,
        f"""
        select v.max_active_tasks,
               (select count(*) from task_instance t where t.dag_run_id = r.id and t.state in {HOLDS_SLOTS.sql})
               as active_in_run,
               (select count(*) from task_instance t where t.dag_run_id = r.id and t.task_id = %(task)s
                   and t.state in {ACTIVE.sql}) as active_of_task_in_run,
               (select count(*) from task_instance t join dag_run o on o.id = t.dag_run_id
                 where o.dag_id = r.dag_id and o.state in {RUN_UNFINISHED.sql} and t.task_id = %(task)s
                   and t.state in {ACTIVE.sql}) as active_of_task,
               (select count(*) from task_instance t where t.state in {HOLDS_SLOTS.sql}) as active
          from dag_run r join dag_version v on v.id = r.version_id where r.id = %(run)s
        """,
        {"run": ti["dag_run_id"], "task": ti["task_id"]},
    )


def queue(connection: Connection, ti: Row, *, silent_after_s: float) -> Row:
    """The Celery queue of a task instance: who listens, what is on it, and how many messages were sent before its own."""
    return _one(
        connection,
        f"""
        select w.workers, w.places, t.running, t.queued, t.ahead
          from (select count(*) as workers, coalesce(sum(concurrency), 0)::int as places from process
                 where kind = 'worker' and stopped_at is null and %(queue)s = any(queues)
                   and heartbeat_at >= clock_timestamp() - make_interval(secs => %(silent)s)) w,
               (select count(*) filter (where state <> 'queued') as running, count(*) filter (where state = 'queued') as queued,
                       count(*) filter (where state = 'queued' and (queued_at, id) < (%(queued_at)s, %(id)s)) as ahead
                  from task_instance where queue = %(queue)s and state in {HOLDS_SLOTS.sql}) t
        """,
        {"queue": ti["queue"], "queued_at": ti["queued_at"], "id": ti["id"], "silent": silent_after_s},
    )


def deferral(connection: Connection, ti_id: int) -> Row | None:
    """The trigger a task instance waits for, and the waiter that awaits it, if that is alive."""
    row = (
        connection.exec_driver_sql(
            "select d.classpath, p.id as waiter from deferral d"
            " left join process p on p.id = d.waiter and p.stopped_at is null where d.task_instance_id = %s",
            (ti_id,),
        )
        .mappings()
        .first()
    )
    return None if row is None else dict(row)


def alive(connection: Connection, kind: str, *, silent_after_s: float) -> int:
    """How many processes of this kind are alive."""
    found: int = connection.exec_driver_sql(
        "select count(*) from process where kind = %s and stopped_at is null"
        " and heartbeat_at >= clock_timestamp() - make_interval(secs => %s)",
        (kind, silent_after_s),
    ).scalar_one()
    return found


def _holders(connection: Connection, name: str) -> list[Row]:
    rows = connection.exec_driver_sql(
        f"""
        select r.dag_id || '.' || t.task_id || case when t.map_index < 0 then '' else '[' || t.map_index || ']' end as name,
               r.run_id, t.pool_slots as slots
          from pool p join task_instance t on t.pool = p.name join dag_run r on r.id = t.dag_run_id
         where p.name = %s and (t.state in {HOLDS_SLOTS.sql} or (p.include_deferred and t.state = 'deferred'))
         order by t.pool_slots desc, t.started_at nulls last, t.id limit %s
        """,
        (name, NAMED),
    )
    return [dict(row) for row in rows.mappings()]


def _reserved_for(connection: Connection, key: Row, rank: str) -> Row | None:
    """The best ranked of those in front that may run but for the slots they still lack."""
    row = (
        connection.exec_driver_sql(
            f"""
            select r.dag_id || '.' || t.task_id as name, r.run_id, t.pool_slots as slots
              from task_instance t
              join dag_run r on r.id = t.dag_run_id and r.state = 'running'
              join dag_version v on v.id = r.version_id
              join dag_schedule s on s.dag_id = r.dag_id and not s.is_paused
             where t.pool = %(pool)s and t.state = 'scheduled' and t.pool_slots > %(free)s and t.pool_slots <= %(slots)s
               and {_in_front(rank)}
               and v.max_active_tasks > (select count(*) from task_instance o
                    where o.dag_run_id = r.id and o.state in {HOLDS_SLOTS.sql})
             order by {rank} desc, t.id limit 1
            """,
            key,
        )
        .mappings()
        .first()
    )
    return None if row is None else dict(row)


def _in_front(rank: str) -> str:
    """SQL: `t` ranks before the task instance `id`. The clock goes on, so that one would count as before itself."""
    return f"t.id <> %(id)s and (-({rank}), t.id) < (select -({rank}), t.id from task_instance t where t.id = %(id)s)"


def _one(connection: Connection, statement: str, parameters: Row) -> Row:
    return dict(connection.exec_driver_sql(statement, parameters).mappings().one())
