"""Pools: the numbers of slots for the task instances that use them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from paceline.authoring.arguments import ID_MAX_LENGTH, is_reserved_queue
from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from scheduler.store.db import rows
from scheduler.store.queueing.limits import IN_POOL, USED_SLOTS, WAITING_INSTANCES, WAITS

DEFAULT_POOL = "default_pool"
#: As of the pool of a task.
NAME_MAX_LENGTH = ID_MAX_LENGTH

SELECT = f"""
    select p.name, p.slots, p.description, p.include_deferred, p.queue, u.used_slots,
           case when p.slots >= 0 then greatest(0, p.slots - u.used_slots) end as free_slots,
           {WAITING_INSTANCES} as waiting
      from pool p cross join lateral (select {USED_SLOTS} as used_slots) u
"""


def pools(connection: Connection) -> list[dict[str, Any]]:
    """Every pool: its slots, how many are used and free (None: no limit), and how many task instances wait."""
    found = connection.exec_driver_sql(f"{SELECT} order by p.name")
    return rows.dicts(found)


def pool(connection: Connection, name: str) -> dict[str, Any]:
    """One pool, which exists, as `pools` lists it."""
    return dict(connection.exec_driver_sql(f"{SELECT} where p.name = %s", (name,)).mappings().one())


def check(name: str, slots: int, queue: str | None = None) -> None:
    """PacelineError if no pool can have this name, number of slots or queue."""
    if not name.strip() or len(name) > NAME_MAX_LENGTH or "\0" in name or not -1 <= slots < 2**31:
        raise PacelineError(
            f"Pool {name!r} must have a name of 1 to {NAME_MAX_LENGTH} characters, and -1 (no limit) or more slots."
        )
    if queue is not None and is_reserved_queue(queue):
        raise PacelineError(
            f"The queue {queue!r} of pool {name!r} is a key that Paceline or Celery keeps in Redis; choose another name."
        )


def set_pool(
    connection: Connection,
    name: str,
    slots: int,
    *,
    description: str | None = None,
    include_deferred: bool | None = None,
    queue: str | None = None,
    replace: bool = True,
) -> dict[str, Any]:
    """Create or change a pool. -1 slots is no limit, None keeps a value, and an empty queue removes the queue. See `check`.

    ConflictError if it exists, without `replace`.
    """
    check(name, slots, queue)
    row = connection.exec_driver_sql(
        """
        insert into pool (name, slots, description, include_deferred, queue)
        values (%(name)s, %(slots)s, coalesce(%(description)s, ''), coalesce(%(include_deferred)s, false),
                nullif(%(queue)s, ''))
        on conflict (name) do update set slots = excluded.slots,
            passes_slots_on = pool.passes_slots_on and pool.slots = excluded.slots,  -- until the queue service has counted
            description = coalesce(%(description)s, pool.description),
            include_deferred = coalesce(%(include_deferred)s, pool.include_deferred),
            queue = case when %(queue)s::text is null then pool.queue else nullif(%(queue)s, '') end
            where %(replace)s
        returning name
        """,
        {
            "name": name,
            "slots": slots,
            "description": description,
            "include_deferred": include_deferred,
            "queue": queue,
            "replace": replace,
        },
    ).first()
    if row is None:
        raise ConflictError(f"There is a pool {name!r} already.")
    return pool(connection, name)


def set_pools(connection: Connection, made: Mapping[str, Mapping[str, Any]], *, replace: bool = True) -> None:
    """Create or change pools, each with the arguments of `set_pool`, in the order in which other statements lock them."""
    for name in sorted(made):
        set_pool(connection, name, **made[name], replace=replace)


def delete_pool(connection: Connection, name: str) -> None:
    """Delete a pool. NotFoundError; ConflictError for default_pool, or if task instances wait for it or hold its slots."""
    if name == DEFAULT_POOL:
        raise ConflictError(f"{DEFAULT_POOL} cannot be deleted: tasks without a pool use it; change its slots instead.")
    # The row lock stops the queue service, which locks its pools too, from giving slots away concurrently.
    if connection.exec_driver_sql("select 1 from pool where name = %s for update", (name,)).first() is None:
        raise NotFoundError(f"There is no pool {name!r}: `paceline pools list` lists all.")
    busy = connection.exec_driver_sql(
        f"select count(*) from pool p join task_instance t on t.pool = p.name where p.name = %s and ({WAITS} or {IN_POOL})",
        (name,),
    ).scalar_one()
    if busy:
        raise ConflictError(f"Pool {name!r} is in use by {busy} task instances: let them end, then delete it.")
    connection.exec_driver_sql("delete from pool where name = %s", (name,))
