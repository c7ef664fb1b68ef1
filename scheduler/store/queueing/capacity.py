"""Free capacity and waiting task instances: the queries of the queue service, in the transaction that locks pools and runs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from paceline.states import RUN_UNFINISHED, Waiting
from scheduler.deciding.limits import OWN, PARALLELISM, RUN, TASK, TASK_IN_RUN, Limit, Place, own_limits
from scheduler.store.db import prepared, rows
from scheduler.store.db.clock import LIVE_WORKER
from scheduler.store.db.rows import array_literal
from scheduler.store.queueing.limits import COUNTING, DEFERRED_IN_POOL, HOLDS, IN_LINE, PARKED, outside

#: Whether a task instance is waiting for slots, see store/upkeep/pending_work.
PENDING = f"exists (select from pool p where exists (select from task_instance t where t.pool = p.name and {IN_LINE}))"
#: How many of those first in line for a pool are examined for paused DAGs.
HEAD = 8
#: How many of a paused DAG one pass moves behind all others.
PARK_AT_ONCE = 5000
#: The prefix of the name of a shared limit in the keys of its advisory locks; see services/queue.
LIMITS_LOCK = "paceline limit "
#: The names there of core.parallelism, and of the places of a queue, before the name of the queue.
ALL_INSTANCES, OF_QUEUE = "parallelism", "queue "

#: The order of rank. With aging, the waiting time counts too, which sorts all that wait for the pool. It ends at the same moment
#: for all rows: with the running clock, the later row of two equal ones would come first.
BY_RANK = "t.rank"
BY_AGED_RANK = "t.rank + extract(epoch from statement_timestamp() - t.scheduled_at) / %(aging_s)s"
#: A run `r` of a DAG with the schedule `s` may continue: in a paused DAG, only the teardowns of a run that was ended early.
MAY_CONTINUE = "(not s.is_paused or r.requested_state is not null)"
LOCKED = "for no key update of t skip locked"
#: The limits that one part of COUNT counts, by the kind of its rows.
COUNTED_TOGETHER: Mapping[str, Sequence[Limit]] = {"run": (RUN,), "task": (TASK, TASK_IN_RUN)}
_COUNT = f"""
select 'held' as kind, t.pool, t.queue, null as dag_id, null::bigint as dag_run_id, null as task_id, sum(t.pool_slots) as slots,
       count(*)::int as instances, null::int as run_limit, null::int as task_limit, null::int as task_in_run_limit
  from task_instance t where {COUNTING[PARALLELISM].counts} group by 2, 3
union all
select 'run', null, null, null, t.dag_run_id, null, 0, t.instances, {COUNTING[RUN].most}, null, null
  from (select dag_run_id, count(*)::int as instances
          from task_instance t where dag_run_id = any(%(runs)s::bigint[]) and {COUNTING[RUN].counts} group by 1) t
  join dag_run r on r.id = t.dag_run_id join dag_version v on v.id = r.version_id
union all
select 'task', null, null, r.dag_id, t.dag_run_id, t.task_id, 0, t.instances, null, t.per_dag, t.per_dagrun
  from (select dag_run_id, task_id, count(*)::int as instances, min({COUNTING[TASK].most}) as per_dag,
               min({COUNTING[TASK_IN_RUN].most}) as per_dagrun
          from task_instance t
         where ({COUNTING[TASK].has} or {COUNTING[TASK_IN_RUN].has}) and {COUNTING[TASK].counts}
         group by 1, 2) t
  join dag_run r on r.id = t.dag_run_id
union all
select 'deferred', t.pool, null, null, null, null, sum(t.pool_slots), 0, null, null, null
  from task_instance t join pool p on p.name = t.pool where {DEFERRED_IN_POOL} group by 2
union all
select 'places', null, q.name, null, null, null, sum(p.concurrency), 0, null, null, null
  from process p cross join unnest(p.queues) q (name) where {LIVE_WORKER} group by 3
"""
COUNT = prepared.of("count_held", {"runs": "bigint[]", "silent": "float8"}, _COUNT)
LOCK_WAITING = prepared.of(
    "lock_waiting_pools",
    {"also": "text[]"},
    f"""
    with wanted as materialized (
        select p.name from pool p
         where p.name = any(%(also)s) or exists (select 1 from task_instance t where t.pool = p.name and {IN_LINE})
    ), held as (
        select p.name, p.slots, p.passes_slots_on from pool p
         where p.name in (select name from wanted) order by p.name for no key update of p skip locked
    )
    select held.*, null as wanted, null as paused from held
    union all select null, null, null, (select count(*) from wanted), array(
        select distinct s.dag_id
          from wanted w
         cross join lateral (
               select t.dag_run_id from task_instance t
                where t.pool = w.name and {IN_LINE} order by t.rank desc, t.id limit {HEAD}) t
          join dag_run r on r.id = t.dag_run_id
          join dag_schedule s on s.dag_id = r.dag_id and not {MAY_CONTINUE})
    """,
)
TASK_NOT_FULL = " and ".join(outside(limit) for limit in (TASK, TASK_IN_RUN))
NOT_FULL = " and ".join(outside(limit) for limit in OWN)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that this transaction has locked; `slots` -1 is no limit.

    `passes_slots_on` is whether workers may pass its slots to the next task.
    """

    name: str
    slots: int
    passes_slots_on: bool


@dataclass(frozen=True, slots=True)
class UsedPlaces:
    """The slots and places of queued and running task instances in one pool and queue."""

    pool: str
    queue: str
    slots: int
    instances: int


@dataclass(frozen=True, slots=True)
class _Counted:
    """A row of COUNT. Which columns are NULL depends on its kind."""

    kind: str
    pool: str | None
    queue: str | None
    dag_id: str | None
    dag_run_id: int | None
    task_id: str | None
    slots: int
    instances: int
    run_limit: int | None
    task_limit: int | None
    task_in_run_limit: int | None


@dataclass(frozen=True, slots=True)
class Pools:
    """The locked pools by name, whether task instances wait for a pool that another scheduler has locked, and the paused DAGs of
    those that are first in line.
    """

    held: dict[str, Pool]
    held_elsewhere: bool
    paused: list[str] = field(default_factory=list)


def lock_waiting_pools(connection: Connection, also: Collection[str] = ()) -> Pools:
    """Lock, in name order, the pools with waiting task instances and `also`, except those that another scheduler has locked."""
    found = prepared.execute(connection, LOCK_WAITING, {"also": list(also)}).all()
    held = {row.name: Pool(row.name, row.slots, row.passes_slots_on) for row in found if row.name is not None}
    others = next(row for row in found if row.name is None)
    return Pools(held, len(held) < others.wanted, others.paused)


def park(connection: Connection, dag_ids: Collection[str]) -> None:
    """Move the waiting task instances of these DAGs, if paused, behind all others of their pools, so that nothing examines them.

    The trigger of dag_schedule moves them up again when their DAG is unpaused. It waits for the shared locks taken here.
    """
    held = connection.exec_driver_sql(
        "select dag_id from dag_schedule where dag_id = any(%s) and is_paused order by dag_id for share skip locked",
        (sorted(dag_ids),),
    )
    connection.exec_driver_sql(
        f"""
        with parked as (
            select t.id from task_instance t join dag_run r on r.id = t.dag_run_id and r.state in {RUN_UNFINISHED.sql}
             where r.dag_id = any(%s) and r.requested_state is null and {IN_LINE}
             order by t.id limit {PARK_AT_ONCE} for no key update of t skip locked
        )
        update task_instance t set rank = t.rank - {PARKED} from parked where t.id = parked.id and {IN_LINE}
        """,
        (list(held.scalars()),),
    )


def set_passing_on(connection: Connection, may: Mapping[str, bool]) -> None:
    """Store for these pools, which the caller has locked, whether workers may pass their slots on."""
    connection.exec_driver_sql(
        "update pool p set passes_slots_on = n.may from unnest(%s::text[], %s::boolean[]) n (name, may) where p.name = n.name",
        (list(may), list(may.values())),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """The queued and running task instances; how many are active in some runs and of tasks with limits of their own, and how many
    may be; deferred slots by pool; and the pool processes of live workers by queue.
    """

    used: list[UsedPlaces] = field(default_factory=list)
    active: Counter[Place] = field(default_factory=Counter)
    most: dict[Place, int] = field(default_factory=dict)
    deferred: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)


def count(connection: Connection, runs: Collection[int], *, alive_s: float) -> Counts:
    """Count in one statement, with each of `runs`; a worker is alive if its heartbeat is at most `alive_s` seconds old.

    All other runs are counted together: a group and a limit for each active run would cost many times as much. No sum is an int,
    since a task can write any number into the row of its worker and into new task instances.
    """
    found = prepared.execute(connection, COUNT, {"runs": array_literal(runs), "silent": alive_s})
    counts = Counts()
    for row in rows.of_result(_Counted, found):
        if row.kind == "held":
            counts.used.append(UsedPlaces(row.pool or "", row.queue or "", row.slots, row.instances))
        elif row.kind == "deferred":
            counts.deferred[row.pool or ""] = row.slots
        elif row.kind == "places":
            counts.places[row.queue or ""] = row.slots
        else:
            for place, most in own_limits(row, COUNTED_TOGETHER[row.kind]):
                counts.active[place] += row.instances
                if most is not None:
                    counts.most[place] = most
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

    def keys(self) -> dict[str, list[Any]]:
        """By limit, the keys of the places as the query compares them."""
        found: dict[str, list[Any]] = {limit: [] for limit in OWN}
        for limit, key in self.places:
            found[limit].append("/".join(map(str, key)) if isinstance(key, tuple) else key)
        return found


def without_shared_limit(connection: Connection, pools: Collection[str], full: Full, unserved: Collection[str]) -> set[str]:
    """Those of these pools with a task instance that waits for a limit which other pools share: nothing of its own is reached.

    Its own are a paused DAG, the limits of its task, max_active_tasks of a run that is active in no other pool, and a queue
    without workers, which are the `unserved` ones.
    """
    found = connection.exec_driver_sql(
        f"""
        with alone as materialized (
            select t.dag_run_id, min(t.pool) as pool from task_instance t
             where t.dag_run_id = any(%({RUN})s::bigint[]) and {HOLDS}
             group by 1 having min(t.pool) = max(t.pool)
        )
        select p.name from unnest(%(pools)s::text[]) p (name)
         where exists (
               select from task_instance t
                 join dag_run r on r.id = t.dag_run_id and r.state = 'running'
                 join dag_schedule s on s.dag_id = r.dag_id and {MAY_CONTINUE}
                where t.pool = p.name and {IN_LINE} and t.queue <> all(%(unserved)s::text[])
                  and {TASK_NOT_FULL}
                  and not exists (select from alone where alone.dag_run_id = t.dag_run_id and alone.pool = t.pool))
        """,
        {"pools": list(pools), "unserved": list(unserved), **full.keys()},
    )
    return set(found.scalars())


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

    Without those that need more slots than `largest`, are behind a `full` limit, or may not continue (MAY_CONTINUE). Each
    pool has its own share, so that a full pool does not starve others. With `lock`, no worker can pass slots on to them until
    this transaction ends; those that are locked elsewhere are left out.
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
                 join dag_schedule s on s.dag_id = r.dag_id and {MAY_CONTINUE}
                where t.pool = p.name and {IN_LINE} and t.pool_slots <= p.largest
                  and t.queue <> all(%(full_queues)s::text[]) and {NOT_FULL}
                order by {rank} desc, t.id
                limit least(p.free, %(limit)s) {locking}) w
        """,
        {
            "pools": list(free),
            "free": list(free.values()),
            "largest": [largest[name] for name in free],
            "full_queues": list(full.queues),
            **full.keys(),
            "limit": limit,
            "aging_s": aging_s,
        },
    )
    return rows.of_result(Waiting, best)


def store_depths(connection: Connection, found: Sequence[Mapping[str, Any]], *, keep_days: float) -> None:
    """Store the depth of queues for this minute, once, and delete what is older than `keep_days` (0: never)."""
    stored = connection.exec_driver_sql(
        """
        insert into queue_depth (queue, at, scheduled, queued, running, places)
        select q.queue, date_trunc('minute', clock_timestamp()), q.scheduled, q.queued, q.running, q.concurrency
          from unnest(%(queue)s::text[], %(scheduled)s::int[], %(queued)s::int[], %(running)s::int[], %(concurrency)s::int[])
               q (queue, scheduled, queued, running, concurrency)
        on conflict do nothing
        """,
        {name: [row[name] for row in found] for name in ("queue", "scheduled", "queued", "running", "concurrency")},
    )
    if stored.rowcount and keep_days:
        connection.exec_driver_sql(
            "delete from queue_depth where at < clock_timestamp() - make_interval(secs => %s)", (keep_days * 86_400,)
        )
