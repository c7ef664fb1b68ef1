"""timeouts: fail the runs whose dagrun_timeout is over, skip what they have not started and stop what they run."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from scheduler.settings import Settings
from scheduler.states import RunState
from scheduler.store.db.database import transaction, transaction_at
from scheduler.store.runs import instances, runs

REASON = "dagrun_timeout: its run took too long"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The runs that were ended, and whether there may be more."""

    closed: dict[int, RunState]
    more: bool


class Timeouts:
    """Each run is ended in a transaction of its own, under its lock; one that another scheduler holds waits for the next pass."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    def run_once(self, now: datetime) -> TimedOut:
        limit = self._settings.scheduler.max_dagruns_per_loop_to_schedule
        found = _timed_out(self._engine, limit)
        closed = {run: RunState.FAILED for run in found if _end(self._engine, run)}
        return TimedOut(closed, more=len(closed) == limit)


@transaction
def _timed_out(connection: Connection, limit: int) -> list[int]:
    return runs.timed_out(connection, limit=limit)


@transaction_at("timeout")
def _end(connection: Connection, dag_run_id: int) -> bool:
    if not runs.hold_timed_out(connection, dag_run_id):
        return False
    instances.end_rest(connection, dag_run_id, running_becomes="skipped", reason=REASON)
    return runs.close(connection, {dag_run_id: RunState.FAILED}) == 1
