"""The fence around what a try writes beside its report: a statement of a try that is not the current one changes nothing.

Each dispatch has an id of its own, so a task instance that names it, in a state in which its worker has it, is still the writer's.
The row is locked for share: whoever ends this try, or starts the next one, waits for the statement, or the statement sees it done.
docs/explanation/worker-writes.md lists every write of workers and waiters with its guard.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from scheduler.exceptions import StaleTryError
from scheduler.states import HOLDS_SLOTS

#: `queued` under the writer's own dispatch: a crash of PostgreSQL has undone the claim, which is asserted again (ADR 4).
CURRENT = f"""
select id from task_instance
 where id = %s and dispatch_id = %s and try_number = %s and coalesce(state, '') in {HOLDS_SLOTS.sql} for share
"""


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: a dispatch of a task instance."""

    ti_id: int
    dispatch_id: str
    try_number: int

    @property
    def key(self) -> tuple[int, str, int]:
        """The parameters of CURRENT."""
        return self.ti_id, self.dispatch_id, self.try_number


def guarded(statement: str) -> str:
    """`statement`, which writes only if `current` has a row: its parameters come after those of CURRENT, and it returns a row each.

    The result is one row with the number of rows written, or none if the writer is not the current try.
    """
    return f"with current as ({CURRENT}), written as ({statement}) select (select count(*) from written) from current"


def stale(writer: Writer) -> StaleTryError:
    """What a refused writer raises: it ends the code of a try that nobody waits for."""
    return StaleTryError(
        f"Try {writer.try_number} (dispatch {writer.dispatch_id}) is no longer the current one of its task instance: nothing was "
        "stored."
    )


def hold(connection: Connection, writer: Writer | None) -> None:
    """Last in a transaction that a task makes: let it be committed only for the current try, StaleTryError. None is no task."""
    if writer is not None and connection.exec_driver_sql(CURRENT, writer.key).first() is None:
        raise stale(writer)
