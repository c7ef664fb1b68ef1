"""deadlines: checks the SLAs and deadlines that have passed, and records each miss once."""

import logging
from datetime import datetime

from scheduler.process import measures
from scheduler.services.service import Result, TimedService
from scheduler.store.db.database import transact
from scheduler.store.runs import deadlines

#: Runs checked in one pass.
BATCH = 100


class Deadlines(TimedService):
    """Checks each run in a transaction of its own; the next pass checks runs that another scheduler has locked."""

    name = "deadlines"
    pending = deadlines.PENDING

    def run_once(self, now: datetime) -> Result:
        missed = self.settle(now)
        if not missed:
            return Result()
        return Result(services=["notify"], log=[(logging.WARNING, f"{missed} SLA(s) or deadline(s) were missed")])

    def settle(self, now: datetime) -> int:
        """Record the missed SLAs and deadlines, and return their number."""
        due = transact(self._engine, deadlines.runs_due, now, limit=BATCH)
        settled = [transact(self._engine, deadlines.settle, run, now) for run in due]
        met, missed = sum(met for met, _ in settled), sum(missed for _, missed in settled)
        if met:
            measures.count("deadline_alerts.deadline_not_missed", met)
        if missed:
            measures.count("deadline_alerts.deadline_missed", missed)
        return missed
