"""deferred -> scheduled: a trigger fired or failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extras import Json
from sqlalchemy import Connection

from scheduler.store.db.database import step
from scheduler.store.moves.reset import NO_DISPATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """The outcome of a trigger: {"event": payload} or {"error": text}, see paceline/authoring/execution."""

    ti_id: int
    dispatch_id: str
    outcome: dict[str, Any]


@step("fire")
def fire(connection: Connection, fired: Sequence[Fired]) -> int:
    """deferred -> scheduled, for each dispatch that still waits. Returns the number of rows moved.

    The try continues: it keeps its number, its start and its XComs.
    """
    moved = connection.exec_driver_sql(
        f"""
        with over as (
            select * from unnest(%(ids)s::bigint[], %(dispatch_ids)s::uuid[], %(outcomes)s::jsonb[]) n (id, dispatch_id, outcome)
        ), held as (
            select t.id, over.outcome
              from over join task_instance t on t.id = over.id and t.dispatch_id = over.dispatch_id and t.state = 'deferred'
             order by t.id for no key update of t
        ), moved as (
            update task_instance t
               set state = 'scheduled', resume = t.resume || held.outcome, scheduled_at = clock_timestamp(),
                   reason = case when held.outcome ? 'error' then 'its trigger failed' else 'its trigger fired' end,
                   {NO_DISPATCH}
              from held
             where t.id = held.id and t.state = 'deferred'
            returning t.id
        ), fired as (
            select d.task_instance_id as id
              from deferral d join over on d.task_instance_id = over.id and d.dispatch_id = over.dispatch_id
             where (select count(*) from held) >= 0 order by 1 for update of d
        ), gone as (
            delete from deferral d using fired where d.task_instance_id = fired.id
        )
        select count(*) from moved
        """,
        {
            "ids": [trigger.ti_id for trigger in fired],
            "dispatch_ids": [trigger.dispatch_id for trigger in fired],
            "outcomes": [Json(trigger.outcome) for trigger in fired],
        },
    )
    return int(moved.scalar_one())
