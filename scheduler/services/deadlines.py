"""deadlines: checks the SLAs and deadlines that have passed, and records each miss once."""

import logging

from scheduler.process import measures
from scheduler.services.service import Result, Service, each
from scheduler.store.db.database import transact
from scheduler.store.runs import deadlines

log = logging.getLogger("paceline.scheduler")

#: Runs checked in one pass.
BATCH = 100


class Deadlines(Service):
    """Checks each run in a transaction of its own; the next pass checks runs that another scheduler has locked."""

    name = "deadlines"
    pending = deadlines.PENDING

    def run_once(self) -> Result:
        missed = self.settle()
        if not missed:
            return Result()
        return Result(services=["notify"], log=[(logging.WARNING, f"{missed} SLA(s) or deadline(s) were missed")])

    def settle(self) -> int:
        """Record the missed SLAs and deadlines, and return their number."""
        due = transact(self._engine, deadlines.runs_due, limit=BATCH)
        settled, broken = each(due, lambda run: transact(self._engine, deadlines.settle, run))
        for run, why in broken.items():
            log.error("The deadlines of DAG run %s cannot be checked: %s", run, why)
        met, missed = sum(met for met, _ in settled.values()), sum(missed for _, missed in settled.values())
        if met:
            measures.count("deadline_alerts.deadline_not_missed", met)
        if missed:
            measures.count("deadline_alerts.deadline_missed", missed)
        return missed
