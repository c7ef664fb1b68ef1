"""Fences every write of a try except its report: a stale try changes nothing.

Each dispatch has its own ID, so a task instance with that ID, in a state in which a worker has it, still belongs to the writer.
The row is locked for share: a process that ends this try or starts the next one waits for the statement, or the statement sees
that change. docs/explanation/worker-writes.md lists every write of workers and waiters with its guard.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.exceptions import StaleTryError
from paceline.states import HOLDS_SLOTS

#: `queued` with the writer's own dispatch ID means that a crash of PostgreSQL undid the claim, which is repeated (ADR 4).
CURRENT = f"""
select id from task_instance
 where id = %s and dispatch_id = %s and try_number = %s and coalesce(state, '') in {HOLDS_SLOTS.sql} for share
"""


@dataclass(frozen=True, slots=True)
class Writer:
    """The author of a write: a dispatch of a task instance."""

    ti_id: int
    dispatch_id: str
    try_number: int

    @property
    def key(self) -> tuple[int, str, int]:
        """The parameters of CURRENT."""
        return self.ti_id, self.dispatch_id, self.try_number


def guarded(statement: str) -> str:
    """Guard a statement that writes only if `current` has a row, and that returns each written row.

    Its parameters follow those of CURRENT. The result is one row with the number of rows written, or no row if the writer is
    not the current try.
    """
    return f"with current as ({CURRENT}), written as ({statement}) select (select count(*) from written) from current"


def stale(writer: Writer) -> StaleTryError:
    """The error of a rejected write, which ends the code of a stale try."""
    return StaleTryError(
        f"Try {writer.try_number} (dispatch {writer.dispatch_id}) is no longer the current one of its task instance: nothing was "
        "stored."
    )


def lock(connection: Connection, writer: Writer | None) -> None:
    """Check at the end of a transaction of a task that its try is current, else StaleTryError. None means no task."""
    if writer is not None and connection.exec_driver_sql(CURRENT, writer.key).first() is None:
        raise stale(writer)
