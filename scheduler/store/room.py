"""What is free and what waits: the reads of the queue service, inside the transaction that holds the pools and runs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from scheduler.states import Waiting

#: Taken only when `parallelism` is near: two schedulers with different pools must not both take the last places.
PARALLELISM_LOCK = 7_223_464


@dataclass(frozen=True, slots=True)
class Held:
    """Slots and places taken by task instances that are queued or running in one pool, queue and run."""

    pool: str
    queue: str
    dag_run_id: int
    slots: int
    instances: int
    queued: int


def hold_waiting_pools(connection: Connection) -> dict[str, int]:
    """Lock, in name order, the pools something waits for, except those another scheduler holds; their slots by name."""
    rows = connection.exec_driver_sql(
        """
        select p.name, p.slots from pool p
         where exists (select 1 from task_instance t where t.pool = p.name and t.state = 'scheduled')
         order by p.name for no key update of p skip locked
        """
    )
    return {row[0]: row[1] for row in rows}


def held(connection: Connection) -> list[Held]:
    """Everything queued or running now."""
    rows = connection.exec_driver_sql(
        """
        select pool, queue, dag_run_id, sum(pool_slots)::int, count(*)::int, (count(*) filter (where state = 'queued'))::int
          from task_instance where state in ('queued', 'running', 'shutdown') group by 1, 2, 3
        """
    )
    return [Held(*row) for row in rows]


def hold_parallelism(connection: Connection) -> None:
    """Wait for the right to count towards `parallelism`; ends with the transaction."""
    connection.exec_driver_sql("select pg_advisory_xact_lock(%s)", (PARALLELISM_LOCK,))


def hold_runs(connection: Connection, ids: Collection[int]) -> set[int]:
    """Lock these runs in id order, except those another scheduler holds: max_active_tasks is counted under this lock."""
    rows = connection.exec_driver_sql(
        "select id from dag_run where id = any(%s) and state = 'running' order by id for no key update skip locked",
        (sorted(ids),),
    )
    return {row[0] for row in rows}


def waiting(
    connection: Connection,
    free: Mapping[str, int],
    *,
    full_runs: Collection[int],
    full_queues: Collection[str],
    limit: int,
) -> list[Waiting]:
    """For each pool of `free` its best ranked waiting task instances: at most as many as it has free slots, each small enough,
    none of a run or queue that is full, none of a paused DAG. Every pool has a share of its own, so a full one starves nobody.
    """
    rows = connection.exec_driver_sql(
        """
        select w.id, w.dag_run_id, w.pool, w.pool_slots, w.queue, w.priority_weight, w.max_active_tasks
          from unnest(%(pools)s::text[], %(free)s::int[]) p (name, free)
         cross join lateral (
               select t.id, t.dag_run_id, t.pool, t.pool_slots, t.queue, t.priority_weight, v.max_active_tasks
                 from task_instance t
                 join dag_run r on r.id = t.dag_run_id and r.state = 'running'
                 join dag_version v on v.id = r.version_id
                 join dag_schedule s on s.dag_id = r.dag_id and not s.is_paused
                where t.pool = p.name and t.state = 'scheduled' and t.pool_slots <= p.free
                  and t.dag_run_id <> all(%(full_runs)s::bigint[]) and t.queue <> all(%(full_queues)s::text[])
                order by t.priority_weight desc, t.id
                limit least(p.free, %(limit)s)) w
        """,
        {
            "pools": list(free),
            "free": list(free.values()),
            "full_runs": list(full_runs),
            "full_queues": list(full_queues),
            "limit": limit,
        },
    )
    return [
        Waiting(
            id=row[0], dag_run_id=row[1], pool=row[2], pool_slots=row[3], queue=row[4], priority_weight=row[5], run_limit=row[6]
        )
        for row in rows
    ]  # fmt: skip


def places(connection: Connection, *, alive_s: float) -> dict[str, int]:
    """Pool children of live workers, by the queue they listen to."""
    rows = connection.exec_driver_sql(
        """
        select q.name, sum(p.concurrency)::int from process p cross join unnest(p.queues) q (name)
         where p.kind = 'worker' and p.stopped_at is null
           and p.heartbeat_at > clock_timestamp() - make_interval(secs => %s)
         group by 1
        """,
        (alive_s,),
    )
    return dict(tuple(row) for row in rows)
