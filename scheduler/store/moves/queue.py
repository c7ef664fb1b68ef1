"""scheduled -> queued: each task instance gets a dispatch ID, and a message with it goes to the broker after the commit."""

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult

from scheduler.messaging.message import Message
from scheduler.store.db import rows
from scheduler.store.db.database import step
from scheduler.store.db.rows import array_literal

#: The columns of a Message about a task instance `t` of a run `r`.
MESSAGE = "t.id as ti_id, t.dispatch_id::text, t.queue, r.dag_id, r.run_id, t.task_id, t.map_index, t.priority_weight"


def queue(connection: Connection, ids: Sequence[int], queued_by: str) -> list[Message]:
    """scheduled -> queued, each with a new dispatch ID. Returns the messages to send after the commit."""
    queued = connection.exec_driver_sql(
        f"""
        with chosen as (
            select t.id, n.dispatch_id
              from unnest(%(ids)s::bigint[], %(dispatch_ids)s::uuid[]) n (id, dispatch_id)
              join task_instance t on t.id = n.id and coalesce(t.state, '') = 'scheduled'
             order by t.id
               for no key update of t
        )
        update task_instance t
           set state = 'queued', dispatch_id = c.dispatch_id, queued_at = clock_timestamp(), queued_by = %(queued_by)s,
               dispatched_at = null
          from chosen c, dag_run r
         where t.id = c.id and coalesce(t.state, '') = 'scheduled' and r.id = t.dag_run_id
        returning {MESSAGE}
        """,
        {"ids": array_literal(ids), "dispatch_ids": array_literal(str(uuid.uuid4()) for _ in ids), "queued_by": queued_by},
    )
    return _messages(queued)


def dispatch_again(connection: Connection) -> list[Message]:
    """Give all task instances queued before the last crash of PostgreSQL a new dispatch ID. Returns the messages to send.

    The crash may have undone a claim with the old ID, so no other worker may claim that ID: a worker that was cut off may
    still run it, and its writes with the old ID must have no effect.
    """
    queued = connection.exec_driver_sql(
        f"""
        with chosen as (
            select t.id from task_instance t
             where t.state = 'queued' and t.queued_at <= (select since from crash_free)
             order by t.id for no key update of t skip locked
        )
        update task_instance t
           set dispatch_id = gen_random_uuid(), queued_at = clock_timestamp(), dispatched_at = null
          from chosen c, dag_run r
         where t.id = c.id and t.state = 'queued' and r.id = t.dag_run_id
        returning {MESSAGE}
        """
    )
    return _messages(queued)


def _messages(queued: CursorResult[Any]) -> list[Message]:
    """The messages in these rows, in the order in which they are sent."""
    return sorted(rows.of_result(Message, queued), key=lambda message: (-message.priority_weight, message.ti_id))


@step("stamp", lambda _: True)
def stamp_dispatched(connection: Connection, messages: Sequence[Message]) -> None:
    """Record that the broker has these messages. If a crash undoes this, rescue only checks them again."""
    connection.exec_driver_sql("set local synchronous_commit = off")
    connection.exec_driver_sql(
        """
        with sent as (
            select t.id from unnest(%(ids)s::bigint[], %(dispatch_ids)s::uuid[]) n (id, dispatch_id)
              join task_instance t on t.id = n.id and t.dispatch_id = n.dispatch_id and coalesce(t.state, '') = 'queued'
             order by t.id for no key update of t skip locked
        )
        update task_instance t set dispatched_at = clock_timestamp() from sent where t.id = sent.id
        """,
        {"ids": array_literal(m.ti_id for m in messages), "dispatch_ids": array_literal(m.dispatch_id for m in messages)},
    )


def queued_longer_than(connection: Connection, seconds: float, *, limit: int, after_id: int = 0) -> list[Message]:
    """Messages of task instances that were queued, or last sent, at least `seconds` ago, by ID, to be checked in the broker."""
    queued = connection.exec_driver_sql(
        f"""
        select {MESSAGE}
          from task_instance t join dag_run r on r.id = t.dag_run_id
         where t.state = 'queued' and t.id > %(after_id)s
           and greatest(t.queued_at, t.dispatched_at) <= clock_timestamp() - make_interval(secs => %(seconds)s)
         order by t.id limit %(limit)s
        """,
        {"seconds": seconds, "limit": limit, "after_id": after_id},
    )
    return rows.of_result(Message, queued)
