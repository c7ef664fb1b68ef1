"""deadlines: look at SLAs and deadlines that have passed, and note each that was missed, once."""

from datetime import datetime

from sqlalchemy import Connection, Engine

from scheduler.store.db.database import transaction
from scheduler.store.runs import deadlines

#: Runs looked at in one pass.
BATCH = 100


class Deadlines:
    """Each run in a transaction of its own; one that another scheduler holds is looked at by the next pass."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run_once(self, now: datetime) -> int:
        """The number of misses noted."""
        return sum(deadlines.settle(self._engine, run, now) for run in _due(self._engine, now))


@transaction
def _due(connection: Connection, now: datetime) -> list[int]:
    return deadlines.runs_due(connection, now, limit=BATCH)
