"""none -> scheduled, or queued for one of them: the first tasks of a run, in the transaction that creates it.

No other transaction sees these task instances before the commit, so nothing waits for their rows. The foremost of them becomes
queued if it may have a slot of its pool and a place under the limits that pools share. For that, ANNOUNCE takes the locks of a
pass of the queue service without waiting; the next statement begins when it has them, counts and moves.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import Connection

from paceline.states import Decision
from scheduler.messaging.message import Message
from scheduler.settings import Settings
from scheduler.store.db import prepared
from scheduler.store.db.clock import LIVE_WORKER
from scheduler.store.db.rows import array_literal
from scheduler.store.moves import fit
from scheduler.store.moves.queue import MESSAGE
from scheduler.store.queueing.capacity import ALL_INSTANCES, LIMITS_LOCK, OF_QUEUE, PENDING
from scheduler.store.queueing.limits import DEFERRED_IN_POOL, HOLDS

#: The names of the shared limits in the keys of their locks.
_LOCKS = {"all": LIMITS_LOCK + ALL_INSTANCES, "of_queue": LIMITS_LOCK + OF_QUEUE}
#: Whether the task instance `f`, whose pool `p` is locked, may have a slot. The places that other transactions have announced are
#: theirs, see SharedLimits of services/queue.
MAY_START = f"""
    p.name is not null and f.max_active_tis_per_dag is null and f.max_active_tis_per_dagrun is null
    and (p.slots < 0 or p.slots >= f.pool_slots
         + (select coalesce(sum(u.slots), 0) from used u where u.pool = p.name)
         + (select coalesce(sum(t.pool_slots), 0) from task_instance t where t.pool = p.name and {DEFERRED_IN_POOL}))
    and %(parallelism)s > (select coalesce(sum(a.amount), 0) from announced a where a.key = hashtext(%(all)s)::oid)
                          + (select coalesce(sum(u.instances), 0) from used u)
    and (select sum(p.concurrency) from process p where f.queue = any (p.queues) and {LIVE_WORKER}) + %(window)s
        > (select coalesce(sum(a.amount), 0) from announced a where a.key = hashtext(%(of_queue)s || f.queue)::oid)
          + (select coalesce(sum(u.instances), 0) from used u where u.queue = f.queue)
"""


#: Locks the pool of a task, notes for this transaction that it is held, and announces that it may take a place of each
#: limit that pools share. None is held if another transaction holds it, or if task instances wait for any pool.
ANNOUNCE = prepared.of(
    "announce",
    {"run": "bigint", "no": "int", "all": "text", "of_queue": "text"},
    f"""
    with own as materialized (
        select t.pool, t.queue from task_instance t
         where t.dag_run_id = %(run)s and t.task_no = %(no)s and t.map_index = -1 and not {PENDING}
    ), held as materialized (
        select p.name, own.queue from own join pool p on p.name = own.pool for no key update of p skip locked
    ), announced as materialized (
        select name, pg_advisory_xact_lock_shared(hashtext(%(all)s), 1) as of_all,
               pg_advisory_xact_lock_shared(hashtext(%(of_queue)s || queue), 1) as of_queue from held
    )
    select set_config('paceline.held_pool', coalesce((select name from announced), ''), true)
    """,
)
SCHEDULE = prepared.of(
    "schedule_first",
    {
        "run": "bigint", "nos": "int[]", "reasons": "text[]", "dispatch_id": "uuid", "parallelism": "int", "window": "int",
        "silent": "float8", "queued_by": "text", "all": "text", "of_queue": "text",
    },
    f"""
    with announced as materialized (
        select l.classid as key, l.pid, max(l.objid::bigint) as amount
          from pg_locks l
         where l.database = (select oid from pg_database where datname = current_database())
           and l.locktype = 'advisory' and l.objsubid = 2 and l.pid <> pg_backend_pid()
         group by 1, 2
    ), used as materialized (
        select t.pool, t.queue, sum(t.pool_slots) as slots, count(*) as instances
          from task_instance t where {HOLDS} group by 1, 2
    ), ready as materialized (
        select f.id, n.reason, n.place = 1 and coalesce({MAY_START}, false) as starts
          from unnest(%(nos)s::int[], %(reasons)s::text[]) with ordinality n (no, reason, place)
          join task_instance f on f.dag_run_id = %(run)s and f.task_no = n.no and f.map_index = -1
          left join pool p on p.name = current_setting('paceline.held_pool')
    ), passing_on as (  -- As a pass of the queue service would write: nothing waits, and no limit is exceeded.
        update pool p set passes_slots_on = true
          from ready where ready.starts and p.name = current_setting('paceline.held_pool') and not p.passes_slots_on
    )
    update task_instance t
       set state = case when ready.starts then 'queued' else 'scheduled' end, reason = ready.reason,
           try_number = t.try_number + 1, scheduled_at = clock_timestamp(),
           queued_at = case when ready.starts then clock_timestamp() end,
           queued_by = case when ready.starts then %(queued_by)s end,
           dispatch_id = case when ready.starts then %(dispatch_id)s::uuid end
      from ready, dag_run r
     where t.id = ready.id and coalesce(t.state, '') = '' and r.id = t.dag_run_id
    returning t.state, {MESSAGE}
    """,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What decides whether a process that creates a run may queue its first task: settings, and who queues."""

    parallelism: int
    #: Messages that a queue may hold beyond the places of its workers, and the seconds after which a silent worker has none.
    window: int
    silent: float
    queued_by: str

    @classmethod
    def of(cls, settings: Settings, queued_by: str) -> Self:
        """The limits of these settings, for a process or person of this name."""
        return cls(
            parallelism=settings.core.parallelism,
            window=settings.scheduler.prefetch_window,
            silent=settings.worker.heartbeat_timeout,
            queued_by=queued_by,
        )


def schedule_first(
    connection: Connection,
    dag_run_id: int,
    decisions: Sequence[Decision],
    *,
    limits: Limits,
    instances: Mapping[str, Any] | None = None,
) -> tuple[list[Message], bool]:
    """Schedule these tasks, and queue the first of them if it may have a slot. First, insert the task instances with these values.

    Returns its message, to be sent after the commit, and whether other tasks wait for the queue service.
    """
    moved = prepared.execute(
        connection,
        SCHEDULE,
        {
            **(instances or {}),
            "run": dag_run_id,
            "no": decisions[0].task_no,
            "nos": array_literal(decision.task_no for decision in decisions),
            "reasons": array_literal(decision.reason for decision in decisions),
            "dispatch_id": str(uuid.uuid4()),
            **{name: getattr(limits, name) for name in Limits.__slots__},
            **_LOCKS,
        },
        after=(*((fit.INSERT,) if instances else ()), ANNOUNCE),
    ).mappings()
    found = [dict(row) for row in moved]
    messages = [Message(**{name: row[name] for name in Message.__slots__}) for row in found if row["state"] == "queued"]
    return messages, len(messages) < len(found)
