"""none, waiting or ended -> success, failed or skipped: a person marks task instances, or a run ends before its tasks."""

from collections.abc import Sequence

from sqlalchemy import Connection

from paceline.states import NOT_CLEARABLE, TaskState
from scheduler.store.moves.reset import NO_RESULT, forget_triggers


def mark(connection: Connection, ti_ids: Sequence[int], state: TaskState, reason: str) -> None:
    """Give these locked task instances a final state; the decision of a branch is deleted."""
    if not ti_ids:
        return
    forget_triggers(connection, ti_ids)
    connection.exec_driver_sql(
        f"""
        update task_instance set state = %(state)s, reason = %(reason)s, ended_at = clock_timestamp(), {NO_RESULT}
         where id = any(%(ids)s) and (state is null or state not in {NOT_CLEARABLE.sql})
        """,
        {"ids": list(ti_ids), "state": state.value, "reason": reason},
    )
