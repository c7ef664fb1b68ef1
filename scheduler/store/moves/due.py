"""up_for_retry, up_for_reschedule and deferred -> scheduled, once they are due."""

from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.states import DUE
from scheduler.store.db import prepared
from scheduler.store.moves.reset import KEEP_TRY, NO_DISPATCH

#: Whether a run may start, or a task instance may be due before the next check, see store/upkeep/pending_work.
PENDING = f"""
    exists (select from dag_run where state = 'queued')
    or exists (select from task_instance where state in {DUE.sql}
                  and due_at <= clock_timestamp() + make_interval(secs => $1))
"""

NEXT_DUE_S = f"select extract(epoch from min(due_at) - clock_timestamp())::float from task_instance where state in {DUE.sql}"
WAITING = prepared.of(
    "waiting", {}, f"select exists (select from dag_run where state = 'queued') as has_queued_runs, ({NEXT_DUE_S}) as due_in_s"
)
FAILED_TRY = KEEP_TRY.format(state="'failed'", ended_at="t.ended_at")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Whether runs are queued, and the seconds until the next retry, poke or timeout of a trigger is due; None if there is none."""

    has_queued_runs: bool
    due_in_s: float | None

    @property
    def is_due(self) -> bool:
        return self.due_in_s is not None and self.due_in_s <= 0


def waiting(connection: Connection) -> Waiting:
    """What waits to start, in one statement that takes no locks: mostly nothing does."""
    row = prepared.execute(connection, WAITING, {}).one()
    return Waiting(row.has_queued_runs, row.due_in_s)


def due(connection: Connection, *, limit: int) -> int:
    """up_for_retry, up_for_reschedule and deferred -> scheduled after `due_at`. Returns the number of rows moved.

    A retry is a new try, and the ended one is kept in task_try; the others continue their try. A deferred one resumes with
    the information that its trigger did not fire in time.
    """
    moved = connection.exec_driver_sql(
        f"""
        with due as (
            select id, state as was from task_instance
             where state in {DUE.sql} and due_at <= clock_timestamp()
             order by due_at, id limit %(limit)s
               for no key update skip locked
        ), kept as (
            {FAILED_TRY} join due using (id) where due.was = 'up_for_retry'
        ), awaited as (
            select d.task_instance_id as id from deferral d join due on due.id = d.task_instance_id
             where due.was = 'deferred' order by 1 for update of d
        ), given_up as (
            delete from deferral d using awaited where d.task_instance_id = awaited.id
        )
        update task_instance t
           set state = 'scheduled', try_number = t.try_number + case when due.was = 'up_for_retry' then 1 else 0 end,
               scheduled_at = clock_timestamp(), {NO_DISPATCH},
               started_at = case when due.was <> 'up_for_retry' then t.started_at end,
               resume = case due.was when 'up_for_reschedule' then t.resume
                                     when 'deferred' then t.resume || '{{"timed_out": true}}' end,
               reason = case due.was when 'up_for_retry' then 'the retry is due'
                                     when 'up_for_reschedule' then 'the next poke is due'
                                     else 'its trigger did not fire in time' end
          from due
         where t.id = due.id and t.state = due.was
        """,
        {"limit": limit},
    )
    return moved.rowcount


def next_due_s(connection: Connection) -> float | None:
    """Seconds until the next retry, poke or timeout of a trigger is due; None if there is none."""
    return connection.exec_driver_sql(NEXT_DUE_S).scalar()
