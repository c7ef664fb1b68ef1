"""timeouts: fails the runs whose dagrun_timeout is over, skips their waiting tasks and stops their running ones."""

import logging

from sqlalchemy import Connection

from scheduler.services.closed_runs import after_closing
from scheduler.services.service import AT_ONCE, Result, Service
from scheduler.states import RunState
from scheduler.store.db.database import commit_point, transact
from scheduler.store.runs import instances, runs

REASON = "dagrun_timeout: its run took too long"


class Timeouts(Service):
    """Ends each run in a transaction of its own. A run that another scheduler has locked is left to the next pass."""

    name = "timeouts"
    pending = runs.PENDING_TIMEOUTS

    def run_once(self) -> Result:
        limit = self._settings.scheduler.max_dagruns_per_loop_to_schedule
        late = transact(self._engine, runs.timed_out, limit=limit)
        closed = {run: RunState.FAILED for run in late if transact(self._engine, _end, run)}
        wake, log = after_closing(self._engine, closed)
        return Result(
            services=wake,
            again_in_s=AT_ONCE if len(closed) == limit else None,
            log=[*((logging.WARNING, f"DAG run {run} failed: its dagrun_timeout is over") for run in closed), *log],
        )


@commit_point("timeout")
def _end(connection: Connection, dag_run_id: int) -> bool:
    if not runs.lock_timed_out(connection, dag_run_id):
        return False
    instances.end_rest(connection, dag_run_id, running_becomes="skipped", reason=REASON)
    return runs.close(connection, {dag_run_id: RunState.FAILED}) == 1
