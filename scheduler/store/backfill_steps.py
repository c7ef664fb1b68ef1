"""The scheduler's side of backfills: what is next in one, while its row is held, and what became of each date."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection

from scheduler.store.new_instances import BACKFILL_RANK

#: What ended becomes undecided, its tries kept; what is being stopped will be undecided once its worker has stopped it.
CLEAR_INSTANCES = """
    with cleared as (
        select id from task_instance where dag_run_id = %(run)s and state is distinct from 'removed' order by id for no key update
    ), kept as (
        insert into task_try (task_instance_id, try_number, dispatch_id, state, queued_by, worker, scheduled_at, queued_at,
                              started_at, ended_at, reason)
        select t.id, t.try_number, t.dispatch_id, t.state, t.queued_by, t.worker, t.scheduled_at, t.queued_at, t.started_at,
               t.ended_at, t.reason
          from task_instance t join cleared using (id) where t.started_at is not null and t.state <> 'shutdown'
    ), forgotten as (
        delete from xcom x using cleared where x.task_instance_id = cleared.id
    )
    update task_instance t
       set state = case when t.state = 'shutdown' then t.state end, asked = case when t.state = 'shutdown' then 'none' end,
           max_tries = t.try_number + coalesce((v.data->'tasks'->t.task_no->>'retries')::int, 0),
           rank = t.priority_weight + %(rank)s, resume = null, decision = null, reason = 'cleared', due_at = null, ended_at = null,
           dispatch_id = case when t.state = 'shutdown' then t.dispatch_id end, dispatched_at = null,
           queued_by = case when t.state = 'shutdown' then t.queued_by end,
           worker = case when t.state = 'shutdown' then t.worker end,
           scheduled_at = case when t.state = 'shutdown' then t.scheduled_at end,
           queued_at = case when t.state = 'shutdown' then t.queued_at end,
           started_at = case when t.state = 'shutdown' then t.started_at end
      from cleared, dag_run r, dag_version v
     where t.id = cleared.id and r.id = t.dag_run_id and v.id = r.version_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A backfill that goes on; this process holds its row."""

    id: int
    dag_id: str
    version_id: int
    max_active_runs: int
    reprocess: str
    conf: dict[str, Any] | None
    #: False while it, or its DAG, is paused or the DAG's file is gone.
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Date:
    """A date of a backfill that has no run yet."""

    ordinal: int
    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime


def unfinished(connection: Connection) -> list[int]:
    """The backfills that have not ended."""
    return list(connection.exec_driver_sql("select id from backfill where ended_at is null order by id").scalars())


def hold(connection: Connection, backfill_id: int) -> Held | None:
    """Lock one backfill; None if it has ended or another process holds it. What it makes is counted under this lock."""
    row = (
        connection.exec_driver_sql(
            """
            select b.id, b.dag_id, b.version_id, b.max_active_runs, b.reprocess, b.conf,
                   not b.is_paused and coalesce(d.is_active and not s.is_paused, false) as goes_on
              from backfill b left join dag d on d.dag_id = b.dag_id left join dag_schedule s on s.dag_id = b.dag_id
             where b.id = %s and b.ended_at is null for no key update of b skip locked
            """,
            (backfill_id,),
        )
        .mappings()
        .first()
    )
    return None if row is None else Held(**row)


def open_runs(connection: Connection, backfill_id: int) -> int:
    """Its runs that are queued or running. A statement of its own: it must see what the last holder of the lock made."""
    count: int = connection.exec_driver_sql(
        "select count(*) from dag_run where backfill_id = %s and state in ('queued', 'running')", (backfill_id,)
    ).scalar_one()
    return count


def next_date(connection: Connection, backfill_id: int) -> Date | None:
    """The first date that has neither a run nor a reason to have none."""
    row = connection.exec_driver_sql(
        "select ordinal, logical_date, data_interval_start, data_interval_end from backfill_run"
        " where backfill_id = %s and state = 'waiting' order by ordinal limit 1",
        (backfill_id,),
    ).first()
    return None if row is None else Date(*row)


def run_of(connection: Connection, dag_id: str, logical_date: datetime) -> tuple[int, str] | None:
    """The DAG's run of that date, as (id, state)."""
    row = connection.exec_driver_sql(
        "select id, state from dag_run where dag_id = %s and logical_date = %s", (dag_id, logical_date)
    ).first()
    return None if row is None else (row[0], row[1])


def leave_out(connection: Connection, backfill_id: int, ordinal: int, reason: str) -> None:
    """waiting -> left_out."""
    connection.exec_driver_sql(
        "update backfill_run set state = 'left_out', reason = %s where backfill_id = %s and ordinal = %s",
        (reason, backfill_id, ordinal),
    )


def take(connection: Connection, backfill_id: int, ordinal: int, dag_run_id: int) -> None:
    """waiting -> made: this run is the backfill's own from now on, new or cleared for it."""
    connection.exec_driver_sql(
        """
        with made as (
            update backfill_run set state = 'made', dag_run_id = %(run)s where backfill_id = %(id)s and ordinal = %(ordinal)s
        )
        update dag_run set backfill_id = %(id)s, backfill_ordinal = %(ordinal)s where id = %(run)s
        """,
        {"id": backfill_id, "ordinal": ordinal, "run": dag_run_id},
    )


def clear(connection: Connection, dag_run_id: int, conf: dict[str, Any] | None) -> bool:
    """success or failed -> queued, as a run of a backfill, with all its task instances; False if it is not ended any more."""
    held = connection.exec_driver_sql(
        "select 1 from dag_run where id = %s and state in ('success', 'failed') for no key update", (dag_run_id,)
    ).first()
    if held is None:
        return False
    connection.exec_driver_sql(
        """
        update dag_run
           set state = 'queued', run_type = 'backfill', triggered_by = 'backfill', conf = coalesce(%(conf)s, conf),
               queued_at = clock_timestamp(), started_at = null, ended_at = null, timeout_at = null, examined_at = null,
               clear_number = clear_number + 1
         where id = %(id)s
        """,
        {"id": dag_run_id, "conf": None if conf is None else psycopg2.extras.Json(conf)},
    )
    connection.exec_driver_sql(CLEAR_INSTANCES, {"run": dag_run_id, "rank": BACKFILL_RANK})
    return True


def end(connection: Connection, backfill_id: int) -> None:
    """It has nothing left to make or to wait for."""
    connection.exec_driver_sql("update backfill set ended_at = clock_timestamp() where id = %s", (backfill_id,))
