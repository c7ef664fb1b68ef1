"""timeouts: fails the runs whose dagrun_timeout is over, skips their waiting tasks and stops their running ones.

Teardowns whose setup succeeded still run, and their run fails after them.
"""

import logging

from sqlalchemy import Connection

from paceline.states import RunState, TaskState
from scheduler.services.promote import after_closing
from scheduler.services.service import AT_ONCE, Result, Service, each
from scheduler.store.actions import mark
from scheduler.store.db.database import step, transact
from scheduler.store.runs import runs, selection

REASON = "dagrun_timeout: its run took too long"


class Timeouts(Service):
    """Ends each run in a transaction of its own. A run that another scheduler has locked is left to the next pass."""

    name = "timeouts"
    pending = runs.PENDING_TIMEOUTS

    def run_once(self) -> Result:
        limit = self._settings.scheduler.max_dagruns_per_loop_to_schedule
        late = transact(self._engine, runs.timed_out, limit=limit)
        states, broken = each(late, lambda run: transact(self._engine, _end, run))
        ended = {run: state for run, state in states.items() if state is not None}
        closed = {run: RunState.FAILED for run, state in ended.items() if state is RunState.FAILED}
        starters, log = after_closing(self._engine, closed)
        return Result(
            if_pending=starters,
            runs=sorted(ended.keys() - closed.keys()),
            again_in_s=AT_ONCE if len(ended) == limit else None,
            log=[
                *((logging.WARNING, f"DAG run {run} fails: its dagrun_timeout is over") for run in ended),
                *(
                    (logging.ERROR, f"DAG run {run} cannot be ended, although its dagrun_timeout is over: {why}")
                    for run, why in broken.items()
                ),
                *log,
            ],
        )


@step("timeout")
def _end(connection: Connection, dag_run_id: int) -> RunState | None:
    """The state of the run after its end: running if its teardowns are left; None if another process has it."""
    if not runs.lock_timed_out(connection, dag_run_id):
        return None
    run = selection.lock_run(connection, dag_run_id)
    if run is None:
        return None
    mark.end_run(connection, run, RunState.FAILED, stopped=TaskState.SKIPPED, reason=REASON)
    ended = selection.lock_run(connection, dag_run_id)
    return None if ended is None else ended.state
