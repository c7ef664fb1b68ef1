"""Free capacity and waiting task instances: the queries of the queue service, in the transaction that locks pools and runs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from scheduler.deciding.limits import RUN, TASK, TASK_IN_RUN, Limit, Place
from scheduler.states import Waiting
from scheduler.store.db import rows
from scheduler.store.db.arrays import literal
from scheduler.store.queueing.limits import COUNTS, DEFERRED_IN_POOL, HOLDS, LIVE_WORKER

#: Whether a task instance is waiting for slots, see store/upkeep/pending_work.
PENDING = "exists (select from task_instance where state = 'scheduled')"
#: The prefix of the name of a shared limit in the keys of its advisory locks; see services/shared_limits.
LIMITS_LOCK = "paceline limit "

#: The order of rank. With aging, the waiting time counts too, which sorts all that wait for the pool. It ends at the same moment
#: for all rows: with the running clock, the later row of two equal ones would come first.
BY_RANK = "t.rank"
BY_AGED_RANK = "t.rank + extract(epoch from statement_timestamp() - t.scheduled_at) / %(aging_s)s"
LOCKED = "for no key update of t skip locked"


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that this transaction has locked; `slots` -1 is no limit.

    `may_pass_slots_on`, the column hands_on, is whether workers may pass its slots to the next task.
    """

    name: str
    slots: int
    may_pass_slots_on: bool


@dataclass(frozen=True, slots=True)
class UsedPlaces:
    """The slots and places of queued and running task instances in one pool and queue."""

    pool: str
    queue: str
    slots: int
    instances: int


@dataclass(frozen=True, slots=True)
class ActiveInRun:
    """The number of queued and running task instances of one run, and its max_active_tasks."""

    dag_run_id: int
    instances: int
    run_limit: int


@dataclass(frozen=True, slots=True)
class ActiveOfTask:
    """The number of active instances of a task with limits of its own, in one run."""

    dag_id: str
    dag_run_id: int
    task_id: str
    instances: int
    task_limit: int | None
    task_in_run_limit: int | None


@dataclass(frozen=True, slots=True)
class _Counted:
    """A row of `count`; `name` and `other` depend on its kind."""

    kind: str
    name: str
    other: str
    run: int
    slots: int
    instances: int
    most: int
    most_in_run: int | None


@dataclass(frozen=True, slots=True)
class Pools:
    """The locked pools by name, and whether task instances wait for a pool that another scheduler has locked."""

    held: dict[str, Pool]
    held_elsewhere: bool


def lock_waiting_pools(connection: Connection) -> Pools:
    """Lock, in name order, the pools with waiting task instances, except those that another scheduler has locked."""
    found = connection.exec_driver_sql(
        """
        with wanted as materialized (
            select p.name from pool p where exists (select 1 from task_instance t where t.pool = p.name and t.state = 'scheduled')
        ), held as (
            select p.name, p.slots, p.hands_on from pool p
             where p.name in (select name from wanted) order by p.name for no key update of p skip locked
        )
        select held.*, null as wanted from held union all select null, null, null, (select count(*) from wanted)
        """
    ).all()
    held = {row.name: Pool(row.name, row.slots, row.hands_on) for row in found if row.name is not None}
    wanted = next(row.wanted for row in found if row.name is None)
    return Pools(held, len(held) < wanted)


def set_passing_on(connection: Connection, may: Mapping[str, bool]) -> None:
    """Store for these pools, which the caller has locked, whether workers may pass their slots on."""
    connection.exec_driver_sql(
        "update pool p set hands_on = n.may from unnest(%s::text[], %s::boolean[]) n (name, may) where p.name = n.name",
        (list(may), list(may.values())),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """The queued and running task instances, also in some runs; active instances of tasks with limits of their own; deferred
    slots by pool; and the pool processes of live workers by queue.
    """

    used: list[UsedPlaces]
    runs: list[ActiveInRun]
    tasks: list[ActiveOfTask]
    deferred: dict[str, int]
    places: dict[str, int]


def count(connection: Connection, runs: Collection[int], *, alive_s: float) -> Counts:
    """Count in one statement, with each of `runs`; a worker is alive if its heartbeat is at most `alive_s` seconds old.

    All other runs are counted together: a group and a limit for each active run would cost many times as much. No sum is an int,
    since a task can write any number into the row of its worker and into new task instances.
    """
    found = connection.exec_driver_sql(
        f"""
        select 'held' as kind, t.pool as name, t.queue as other, null::bigint as run, sum(t.pool_slots) as slots,
               count(*)::int as instances, null::int as most, null::int as most_in_run
          from task_instance t where {HOLDS} group by 2, 3
        union all
        select 'run', null, null, t.dag_run_id, 0, t.instances, v.max_active_tasks, null
          from (select dag_run_id, count(*)::int as instances
                  from task_instance t where dag_run_id = any(%(runs)s::bigint[]) and {HOLDS} group by 1) t
          join dag_run r on r.id = t.dag_run_id join dag_version v on v.id = r.version_id
        union all
        select 'task', r.dag_id, t.task_id, t.dag_run_id, 0, t.instances, t.per_dag, t.per_dagrun
          from (select dag_run_id, task_id, count(*)::int as instances, min(max_active_tis_per_dag) as per_dag,
                       min(max_active_tis_per_dagrun) as per_dagrun
                  from task_instance t
                 where (max_active_tis_per_dag is not null or max_active_tis_per_dagrun is not null) and {COUNTS}
                 group by 1, 2) t
          join dag_run r on r.id = t.dag_run_id
        union all
        select 'deferred', t.pool, null, null, sum(t.pool_slots), 0, null, null
          from task_instance t join pool p on p.name = t.pool where {DEFERRED_IN_POOL} group by 2
        union all
        select 'places', q.name, null, null, sum(p.concurrency), 0, null, null
          from process p cross join unnest(p.queues) q (name) where {LIVE_WORKER} group by 2
        """,
        {"runs": literal(runs), "silent": alive_s},
    )
    counts = Counts([], [], [], {}, {})
    for row in rows.of_result(_Counted, found):
        if row.kind == "held":
            counts.used.append(UsedPlaces(row.name, row.other, row.slots, row.instances))
        elif row.kind == "run":
            counts.runs.append(ActiveInRun(row.run, row.instances, row.most))
        elif row.kind == "task":
            counts.tasks.append(ActiveOfTask(row.name, row.run, row.other, row.instances, row.most, row.most_in_run))
        elif row.kind == "deferred":
            counts.deferred[row.name] = row.slots
        else:
            counts.places[row.name] = row.slots
    return counts


def announce(connection: Connection, amounts: Mapping[str, int]) -> dict[str, int]:
    """Announce how much of these limits this transaction may take. Returns how much all other transactions may take of them.

    An announcement is a shared advisory lock of (limit, amount) until the end of the transaction, which never waits. The locks
    of others are read in a separate statement after it, and the caller counts what is free in a later one.
    """
    found = connection.exec_driver_sql(
        """
        select pg_advisory_xact_lock_shared(hashtext(%(prefix)s || name), amount)
          from unnest(%(names)s::text[], %(amounts)s::int[]) own (name, amount);
        select own.name, sum(other.amount)::bigint as taken
          from unnest(%(names)s::text[]) own (name)
          join (select l.classid, l.pid, max(l.objid::bigint) as amount
                  from pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database()
                 where l.locktype = 'advisory' and l.objsubid = 2 and l.pid <> pg_backend_pid()
                 group by 1, 2) other on other.classid = hashtext(%(prefix)s || own.name)::oid
         group by 1
        """,
        {"names": list(amounts), "amounts": list(amounts.values()), "prefix": LIMITS_LOCK},
    )
    return {row.name: row.taken for row in found}


def lock_runs(connection: Connection, ids: Collection[int]) -> set[int]:
    """Lock these runs in ID order, except those that another scheduler has locked; max_active_tasks is counted under this lock."""
    found = connection.exec_driver_sql(
        "select id from dag_run where id = any(%s) and state = 'running' order by id for no key update skip locked",
        (sorted(ids),),
    )
    return set(found.scalars())


def lock_dags(connection: Connection, dag_ids: Collection[str]) -> set[str]:
    """Lock the schedules of these DAGs, except those locked elsewhere; max_active_tis_per_dag is counted under this lock."""
    rows = connection.exec_driver_sql(
        "select dag_id from dag_schedule where dag_id = any(%s) order by dag_id for no key update skip locked", (sorted(dag_ids),)
    )
    return set(rows.scalars())


@dataclass(frozen=True, slots=True)
class Full:
    """The names without capacity, which the query excludes before its LIMIT: queues, runs, and tasks with limits of their own."""

    queues: set[str] = field(default_factory=set)
    places: set[Place] = field(default_factory=set)

    def keys(self, limit: Limit) -> list[Any]:
        return [key for of, key in self.places if of == limit]


def waiting(
    connection: Connection,
    free: Mapping[str, int],
    largest: Mapping[str, int],
    *,
    full: Full,
    limit: int,
    aging_s: float = 0,
    lock: bool = False,
) -> list[Waiting]:
    """The highest-ranked waiting task instances of each pool in `free`, at most as many as it has free slots.

    Without those that need more slots than `largest`, are behind a `full` limit, or belong to a paused DAG. Each pool has its
    own share, so that a full pool does not starve others. With `lock`, no worker can pass slots on to them until this transaction
    ends; those that are locked elsewhere are left out.
    """
    rank = BY_AGED_RANK if aging_s else BY_RANK
    locking = LOCKED if lock else ""
    best = connection.exec_driver_sql(
        f"""
        select w.* from unnest(%(pools)s::text[], %(free)s::int[], %(largest)s::int[]) p (name, free, largest)
         cross join lateral (
               select t.id, ({rank})::double precision as rank, r.dag_id, t.dag_run_id, t.task_id, t.pool, t.pool_slots, t.queue,
                      v.max_active_tasks as run_limit, t.max_active_tis_per_dag as task_limit,
                      t.max_active_tis_per_dagrun as task_in_run_limit
                 from task_instance t
                 join dag_run r on r.id = t.dag_run_id and r.state = 'running'
                 join dag_version v on v.id = r.version_id
                 join dag_schedule s on s.dag_id = r.dag_id and not s.is_paused
                where t.pool = p.name and t.state = 'scheduled' and t.pool_slots <= p.largest
                  and t.dag_run_id <> all(%(full_runs)s::bigint[]) and t.queue <> all(%(full_queues)s::text[])
                  and (t.max_active_tis_per_dag is null or r.dag_id || '/' || t.task_id <> all(%(full_tasks)s::text[]))
                  and (t.max_active_tis_per_dagrun is null
                       or t.dag_run_id || '/' || t.task_id <> all(%(full_tasks_in_run)s::text[]))
                order by {rank} desc, t.id
                limit least(p.free, %(limit)s) {locking}) w
        """,
        {
            "pools": list(free),
            "free": list(free.values()),
            "largest": [largest[name] for name in free],
            "full_runs": full.keys(RUN),
            "full_queues": list(full.queues),
            "full_tasks": [f"{dag_id}/{task_id}" for dag_id, task_id in full.keys(TASK)],
            "full_tasks_in_run": [f"{run}/{task_id}" for run, task_id in full.keys(TASK_IN_RUN)],
            "limit": limit,
            "aging_s": aging_s,
        },
    )
    return rows.of_result(Waiting, best)
