"""The limits of deciding/limits in SQL: which task instances count towards each, what they share, and how many are allowed."""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.states import ACTIVE, HOLDS_SLOTS, RUN_UNFINISHED
from scheduler.deciding.limits import OWN, PARALLELISM, POOL, RUN, TASK, TASK_IN_RUN, Limit

#: A task instance `t` that holds slots and places; one that counts towards the limits of its task.
HOLDS = f"t.state in {HOLDS_SLOTS.sql}"
COUNTS = f"t.state in {ACTIVE.sql}"
#: One that waits for slots, and one that is deferred.
WAITS = "t.state = 'scheduled'"
#: How far the queue service moves the rank of a waiting task instance down while its DAG is paused, so that it is behind all
#: others of its pool; the least rank of one that is in the line. The trigger that moves them up again has both numbers, too.
PARKED, LOWEST_RANK = 2**61, -(2**60)
IN_LINE = f"t.state = 'scheduled' and t.rank > {LOWEST_RANK}"
#: The rank of a task instance `t` that is not parked any more.
OWN_RANK = f"case when t.rank > {LOWEST_RANK} then t.rank else t.rank + {PARKED} end"
DEFERRED = "t.state = 'deferred'"
#: A deferred task instance that holds slots of its pool `p`; any task instance that does.
DEFERRED_IN_POOL = f"(p.include_deferred and {DEFERRED})"
IN_POOL = f"({HOLDS} or {DEFERRED_IN_POOL})"


def _slots(condition: str) -> str:
    return f"(select coalesce(sum(t.pool_slots), 0)::bigint from task_instance t where t.pool = p.name and {condition})"


#: Slots of the pool `p`. The used ones, whose task instances are IN_POOL, are two sums, since a partial index has each of them.
USED_SLOTS = f"({_slots(HOLDS)} + {_slots(DEFERRED_IN_POOL)})"
WAITING_SLOTS = _slots(WAITS)
DEFERRED_SLOTS = _slots(DEFERRED)
#: The number of task instances that wait for slots of the pool `p`.
WAITING_INSTANCES = f"(select count(*) from task_instance t where t.pool = p.name and {WAITS})"
#: RUNNING_RUNS counts the running runs of the DAG `d`; OPEN_RUNS adds its queued ones. Runs of the backfill `b` count only
#: towards the max_active_runs of the backfill.
_OF_DAG = "select count(*) from dag_run o where o.dag_id = d.dag_id and o.backfill_id is null and o.state"
_OF_BACKFILL = "select count(*) from dag_run o where o.backfill_id = b.id and o.state"
RUNNING_RUNS = f"({_OF_DAG} = 'running')"
OPEN_RUNS = f"({_OF_DAG} in {RUN_UNFINISHED.sql})"
RUNNING_RUNS_OF_BACKFILL = f"({_OF_BACKFILL} = 'running')"
OPEN_RUNS_OF_BACKFILL = f"({_OF_BACKFILL} in {RUN_UNFINISHED.sql})"
#: For a run `r` with its backfill `b` and the newest version `v` of its DAG: the runs `o` that share its max_active_runs, and this.
SHARES_RUNS = "o.dag_id = r.dag_id and o.backfill_id is not distinct from r.backfill_id"
MOST_RUNS = "coalesce(b.max_active_runs, v.max_active_runs)"
#: A task instance with its run `r`, its version `v` and its pool `p`.
INSTANCES = """task_instance t join dag_run r on r.id = t.dag_run_id join dag_version v on v.id = r.version_id
          left join pool p on p.name = t.pool"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """SQL on INSTANCES: which of them count, which have the limit, which columns they share, how much each counts, and how much
    is allowed.
    """

    counts: str
    has: str = "true"
    shared: tuple[str, ...]
    each: str = "1"
    most: str
    #: A condition with which an index finds those that count towards the limit of a single task instance.
    found: str = "true"


#: The columns of the attributes in the keys of OWN, and those by which people know them.
_COLUMNS = {"dag_id": "r.dag_id", "dag_run_id": "t.dag_run_id", "task_id": "t.task_id"}
_NAMES = {"dag_id": ("r.dag_id",), "dag_run_id": ("r.dag_id", "r.run_id"), "task_id": ("t.task_id",)}


def _names(limit: Limit) -> tuple[str, ...]:
    return tuple(column for attribute in OWN[limit].key for column in _NAMES[attribute])


COUNTING: Mapping[Limit, Counting] = {
    POOL: Counting(counts=IN_POOL, has="p.slots >= 0", shared=("t.pool",), each="t.pool_slots", most="p.slots"),
    PARALLELISM: Counting(counts=HOLDS, shared=(), most="%(parallelism)s"),
    RUN: Counting(counts=HOLDS, shared=_names(RUN), most="v.max_active_tasks"),
    TASK_IN_RUN: Counting(
        counts=COUNTS,
        has="t.max_active_tis_per_dagrun is not null",
        shared=_names(TASK_IN_RUN),
        most="t.max_active_tis_per_dagrun",
    ),
    TASK: Counting(
        counts=COUNTS,
        has="t.max_active_tis_per_dag is not null",
        shared=_names(TASK),
        most="t.max_active_tis_per_dag",
        found=f"r.state in {RUN_UNFINISHED.sql}",
    ),
}


def outside(limit: Limit) -> str:
    """SQL: a task instance `t` of the run `r` has no such limit, or its key is not one of %(<limit>)s, see Full.keys."""
    columns = [_COLUMNS[attribute] for attribute in OWN[limit].key]
    key, kind = (columns[0], "bigint") if len(columns) == 1 else (" || '/' || ".join(columns), "text")
    return f"(not {COUNTING[limit].has} or {key} <> all(%({limit})s::{kind}[]))"


def over(limit: Limit) -> str:
    """SQL: the dag_id, run_id and task_id (NULL where not shared) that are over a limit, its pool, `held` and `most`."""
    counting = COUNTING[limit]
    named = {column.partition(".")[2]: column for column in counting.shared}
    columns = ", ".join(f"{named.get(name, 'null')} as {name}" for name in ("dag_id", "run_id", "task_id", "pool"))
    group = f" group by {', '.join(counting.shared)}" if counting.shared else ""
    return f"""
        select * from (
            select {columns}, sum({counting.each}) as held, min({counting.most}) as most
              from {INSTANCES} where {counting.counts} and {counting.has}{group}) h
         where h.held > h.most"""


def towards(*limits: Limit) -> str:
    """SQL: for each limit of the task instance %(id)s, its name, how much is allowed and how much is active."""
    parts = " union all ".join(
        f"""
        select '{limit}' as name, me."{limit}" as "limit", (
               select coalesce(sum({COUNTING[limit].each}), 0)::bigint from {INSTANCES}
                where {COUNTING[limit].found} and {counted(limit)}) as active
          from me where me."{limit}" is not null"""
        for limit in limits
    )
    return f"""
        with me as (
            select r.dag_id, r.run_id, t.task_id, t.pool, {allowed(*limits)} from {INSTANCES} where t.id = %(id)s) {parts}"""


def allowed(*limits: Limit) -> str:
    """SQL: how much each limit allows for a task instance, in a column with its name."""
    return ", ".join(f'{COUNTING[limit].most} as "{limit}"' for limit in limits)


def counted(limit: Limit) -> str:
    """SQL: whether a task instance counts towards a limit of the task instance `me`."""
    counting = COUNTING[limit]
    return " and ".join([counting.counts, *(f"{column} = me.{column.partition('.')[2]}" for column in counting.shared)])
