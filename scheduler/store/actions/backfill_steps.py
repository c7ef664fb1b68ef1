"""Backfills, as the scheduler processes them: the next date of a locked backfill, and the result of each date."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection

from paceline.states import RUN_FINISHED
from scheduler.settings import Core
from scheduler.store.actions import clear
from scheduler.store.dags.versions import Versions
from scheduler.store.db import rows
from scheduler.store.moves.fit import BACKFILL_RANK
from scheduler.store.queueing.limits import OPEN_RUNS_OF_BACKFILL
from scheduler.store.runs.selection import Tasks

#: Whether a backfill is open, see store/upkeep/pending_work.
PENDING = "exists (select from backfill where ended_at is null)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBackfill:
    """An open backfill, whose row is locked by this process."""

    id: int
    dag_id: str
    version_id: int
    max_active_runs: int
    reprocess: str
    conf: dict[str, Any] | None
    #: False while it or its DAG is paused, or while the DAG's file is missing.
    goes_on: bool


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """A run that a date of a backfill has already."""

    id: int
    state: str


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


def lock(connection: Connection, backfill_id: int) -> LockedBackfill | None:
    """Lock one backfill; None if it has ended or is locked by another process. Its runs are counted under this lock."""
    held = connection.exec_driver_sql(
        """
        select b.id, b.dag_id, b.version_id, b.max_active_runs, b.reprocess, b.conf,
               not b.is_paused and coalesce(d.is_active and not s.is_paused, false) as goes_on
          from backfill b left join dag d on d.dag_id = b.dag_id left join dag_schedule s on s.dag_id = b.dag_id
         where b.id = %s and b.ended_at is null for no key update of b skip locked
        """,
        (backfill_id,),
    )
    return rows.first(LockedBackfill, held)


def open_runs(connection: Connection, backfill_id: int) -> int:
    """Its runs that are queued or running. This is a separate statement, so that it sees runs created under the previous lock."""
    count = connection.exec_driver_sql(f"select {OPEN_RUNS_OF_BACKFILL} from backfill b where b.id = %s", (backfill_id,))
    return int(count.scalar_one())


def next_date(connection: Connection, backfill_id: int) -> Date | None:
    """The first date that has not been processed."""
    waiting = connection.exec_driver_sql(
        "select ordinal, logical_date, data_interval_start, data_interval_end from backfill_run"
        " where backfill_id = %s and state = 'waiting' order by ordinal limit 1",
        (backfill_id,),
    )
    return rows.first(Date, waiting)


def run_of(connection: Connection, dag_id: str, logical_date: datetime) -> ExistingRun | None:
    """The DAG's run of that date."""
    return rows.first(
        ExistingRun,
        connection.exec_driver_sql("select id, state from dag_run where dag_id = %s and logical_date = %s", (dag_id, logical_date)),
    )


def leave_out(connection: Connection, backfill_id: int, ordinal: int, reason: str) -> None:
    """waiting -> left_out."""
    connection.exec_driver_sql(
        "update backfill_run set state = 'left_out', reason = %s where backfill_id = %s and ordinal = %s",
        (reason, backfill_id, ordinal),
    )


def take(connection: Connection, backfill_id: int, ordinal: int, dag_run_id: int) -> None:
    """waiting -> made: the run, new or cleared, belongs to the backfill from now on."""
    connection.exec_driver_sql(
        """
        with made as (
            update backfill_run set state = 'made', dag_run_id = %(run)s where backfill_id = %(id)s and ordinal = %(ordinal)s
        )
        update dag_run set backfill_id = %(id)s, backfill_ordinal = %(ordinal)s where id = %(run)s
        """,
        {"id": backfill_id, "ordinal": ordinal, "run": dag_run_id},
    )


def repeat(connection: Connection, held: LockedBackfill, date: Date, dag_run_id: int, *, core: Core, versions: Versions) -> bool:
    """success or failed -> queued, with all task instances cleared: the run belongs to the backfill from now on.

    False if the run was cleared concurrently.
    """
    run = clear.lock_run(connection, dag_run_id)
    if run is None or run.state not in RUN_FINISHED:
        return False
    connection.exec_driver_sql(
        "update dag_run set run_type = 'backfill', triggered_by = 'backfill', conf = coalesce(%(conf)s, conf) where id = %(run)s",
        {"run": dag_run_id, "conf": None if held.conf is None else psycopg2.extras.Json(held.conf)},
    )
    take(connection, held.id, date.ordinal, dag_run_id)
    if not clear.clear_locked(connection, replace(run, is_backfill=True), Tasks(), core, versions):
        # There was nothing to clear: all of its task instances are removed, or undecided as after a cancelled backfill.
        clear.queue_again(connection, run, versions.dag(connection, run.version_id))
    connection.exec_driver_sql(
        "update task_instance set rank = priority_weight + %s where dag_run_id = %s", (BACKFILL_RANK, dag_run_id)
    )
    return True


def end(connection: Connection, backfill_id: int) -> None:
    """End a backfill that is complete. It also ends a pause, which must not hold back runs that are cleared later."""
    connection.exec_driver_sql("update backfill set is_paused = false, ended_at = clock_timestamp() where id = %s", (backfill_id,))
