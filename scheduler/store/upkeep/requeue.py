"""queued -> scheduled: what is queued beyond a limit that was lowered gives its place back; what runs keeps it.

The newest dispatch goes first. Its message stays with the broker and finds nothing to claim; the try is not spent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from scheduler.states import ACTIVE, HOLDS_SLOTS
from scheduler.store.upkeep.invariants import Broken, Limits

HELD = f"t.state in {HOLDS_SLOTS.sql}"
COUNTS = f"t.state in {ACTIVE.sql}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Which task instances `t` count, how much each of them, and how much there may be (NULL: no limit)."""

    among: str
    each: str = "1"
    most: str


POOL = Limit(
    among=f"t.pool = %(key)s and ({HELD} or (t.state = 'deferred' and (select include_deferred from pool where name = %(key)s)))",
    each="t.pool_slots",
    most="select nullif(slots, -1) from pool where name = %(key)s",
)
PARALLELISM = Limit(among=HELD, most="select %(parallelism)s")
RUN = Limit(
    among=f"t.dag_run_id = %(run)s and {HELD}",
    most="select v.max_active_tasks from dag_run r join dag_version v on v.id = r.version_id where r.id = %(run)s",
)
TASK = Limit(
    among=f"t.task_id = %(task)s and t.max_active_tis_per_dag is not null and {COUNTS}"
    " and (select r.dag_id from dag_run r where r.id = t.dag_run_id) = %(dag)s",
    most="select min(max_active_tis_per_dag) from counted",
)
TASK_IN_RUN = Limit(
    among=f"t.task_id = %(task)s and t.dag_run_id = %(run)s and t.max_active_tis_per_dagrun is not null and {COUNTS}",
    most="select min(max_active_tis_per_dagrun) from counted",
)
#: By the name of the invariant.
LIMITS: Mapping[str, Limit] = {
    "pool over its slots": POOL, "parallelism exceeded": PARALLELISM, "run over max_active_tasks": RUN,
    "task over its limit": TASK, "task over its limit in a run": TASK_IN_RUN,
}  # fmt: skip


def requeue(connection: Connection, one: Broken, limits: Limits) -> int:
    """As many as are queued beyond the limit that `one` names, as long as there are some; how many.

    Not after a crash of PostgreSQL, until workers have asserted claims that it may have undone: what looks queued may run.
    """
    limit = LIMITS[one.name]
    taken = connection.exec_driver_sql(
        f"""
        with counted as (
            select t.id, t.state, t.queued_at, t.max_active_tis_per_dag, t.max_active_tis_per_dagrun, {limit.each} as slots
              from task_instance t where {limit.among}
        ), beyond as (
            select sum(slots) - ({limit.most}) as slots from counted
        ), newest_first as (
            select id, sum(slots) over (order by queued_at desc, id desc) - slots as before from counted where state = 'queued'
        ), chosen as (
            select t.id from beyond cross join newest_first n join task_instance t on t.id = n.id
             where n.before < beyond.slots and t.state = 'queued'
               and exists (select from crash_free where since < clock_timestamp() - make_interval(secs => %(settled)s))
             order by t.id for no key update of t skip locked
        )
        update task_instance t
           set state = 'scheduled', reason = 'a limit was lowered', dispatch_id = null, dispatched_at = null,
               queued_at = null, queued_by = null
          from chosen where t.id = chosen.id and t.state = 'queued'
        """,
        {"key": one.key, "run": one.dag_run_id, "dag": one.dag_id, "task": one.task_id, "parallelism": limits.parallelism,
         "settled": limits.worker_timeout_s},
    )  # fmt: skip
    return taken.rowcount
