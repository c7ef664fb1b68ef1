"""The triggers of deferred task instances: waiters claim them, and they are released if a waiter is lost. moves/fire.py fires them.

A row of `deferral` belongs to one dispatch. It counts only if the task instance is still deferred with that dispatch ID.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from scheduler.store.db import rows
from scheduler.store.db.database import step


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A trigger that a waiter has claimed, with its task instance."""

    ti_id: int
    dispatch_id: str
    classpath: str
    kwargs: dict[str, Any]
    file: str | None
    dag_id: str
    run_id: str
    task_id: str
    #: When the task continues without the event; None for a trigger without a timeout.
    due_at: datetime | None = None
    #: The ID of the bundle version of the run; None: the file is in the DAGs folder.
    bundle_version: int | None = None


@step("await")
def claim(connection: Connection, waiter: str, *, limit: int) -> list[Awaited]:
    """Claim triggers that no waiter awaits, oldest first; none for a waiter that was declared lost or has stopped."""
    # Holds its row against processes.expire and processes.stop, so that a trigger is taken either before (and released by them)
    # or not at all. A stronger lock would make the heartbeat, which updates this row, wait for whatever the claim waits for.
    alive = connection.exec_driver_sql("select 1 from process where id = %s and stopped_at is null for key share", (waiter,))
    if alive.first() is None:
        return []
    taken = connection.exec_driver_sql(
        """
        with free as (
            select task_instance_id from deferral where waiter is null
             order by created_at, task_instance_id limit %(limit)s for no key update skip locked
        ), taken as (
            update deferral d set waiter = %(waiter)s from free where d.task_instance_id = free.task_instance_id
            returning d.task_instance_id, d.dispatch_id, d.classpath, d.kwargs, d.file
        )
        select d.task_instance_id as ti_id, d.dispatch_id::text, d.classpath, d.kwargs, d.file, r.dag_id, r.run_id, t.task_id,
               t.due_at, v.bundle_version_id as bundle_version
          from taken d
          join task_instance t on t.id = d.task_instance_id
          join dag_run r on r.id = t.dag_run_id
          join dag_version v on v.id = r.version_id
        """,
        {"waiter": waiter, "limit": limit},
    )
    return rows.of_result(Awaited, taken)


def waiting(connection: Connection) -> int:
    """The number of task instances that wait for a trigger."""
    return int(connection.exec_driver_sql("select count(*) from deferral").scalar_one())


def still_awaited(connection: Connection, waiter: str, mine: Sequence[tuple[int, str]]) -> dict[str, bool]:
    """The dispatches of `mine` that still wait for a trigger, and whether it is one of this waiter.

    The others were cleared, marked or timed out.
    """
    awaited = connection.exec_driver_sql(
        """
        with mine as (
            select * from unnest(%(ids)s::bigint[], %(dispatch_ids)s::uuid[]) n (id, dispatch_id)
        ), left_behind as (
            select d.task_instance_id as id from deferral d
              join mine on d.task_instance_id = mine.id and d.dispatch_id = mine.dispatch_id
             where not exists (select 1 from task_instance t
                                where t.id = mine.id and t.dispatch_id = mine.dispatch_id and t.state = 'deferred')
             order by 1 for update of d
        ), gone as (
            delete from deferral d using left_behind l where d.task_instance_id = l.id
        )
        select d.dispatch_id::text, d.waiter is not distinct from %(waiter)s as is_ours
          from mine n
          join deferral d on d.task_instance_id = n.id and d.dispatch_id = n.dispatch_id
          join task_instance t on t.id = n.id and t.dispatch_id = n.dispatch_id and t.state = 'deferred'
        """,
        {"ids": [ti_id for ti_id, _ in mine], "dispatch_ids": [dispatch_id for _, dispatch_id in mine], "waiter": waiter},
    )
    return {row.dispatch_id: row.is_ours for row in awaited}


def release(connection: Connection, waiter: str, *, known: Collection[str] = ()) -> int:
    """Release the triggers of a waiter, except for these dispatches, and return their number."""
    freed = connection.exec_driver_sql(
        """
        with mine as (
            select task_instance_id from deferral where waiter = %s and dispatch_id <> all(%s::uuid[])
             order by task_instance_id for no key update
        )
        update deferral d set waiter = null from mine where d.task_instance_id = mine.task_instance_id
        """,
        (waiter, list(known)),
    )
    return freed.rowcount
