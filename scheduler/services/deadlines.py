"""deadlines: look at SLAs and deadlines that have passed, and note each that was missed, once."""

import logging
from datetime import datetime

from sqlalchemy import Connection, Engine

from scheduler.services.service import Result, TimedService
from scheduler.settings import Settings
from scheduler.store.db.database import transaction
from scheduler.store.runs import deadlines

#: Runs looked at in one pass.
BATCH = 100


class Deadlines(TimedService):
    """Each run in a transaction of its own; one that another scheduler holds is looked at by the next pass."""

    name = "deadlines"
    pending = deadlines.PENDING

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self.interval_s = settings.scheduler.scheduler_idle_sleep_time

    def run_once(self, now: datetime) -> Result:
        missed = self.settle(now)
        if not missed:
            return Result()
        return Result(wake=["notify"], log=[(logging.WARNING, f"{missed} SLA(s) or deadline(s) were missed")])

    def settle(self, now: datetime) -> int:
        """Note what was missed; the number of misses."""
        return sum(deadlines.settle(self._engine, run, now) for run in _due(self._engine, now))


@transaction
def _due(connection: Connection, now: datetime) -> list[int]:
    return deadlines.runs_due(connection, now, limit=BATCH)
