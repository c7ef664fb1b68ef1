"""What a fault has at hand: the stage, a meter, dice of its own, and a bound on how long something stays stopped or cut."""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import psycopg2
from sqlalchemy.exc import DBAPIError

from chaos.recovery import LIMIT_S, Meter, Recovery
from chaos.stage import Stage
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs

#: Seconds to look for a victim that is at work.
LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class Act:
    """`longest_s` bounds how long something stays stopped or cut."""

    stage: Stage
    meter: Meter
    dice: random.Random
    longest_s: float

    def pause_s(self) -> float:
        return min(self.longest_s, self.dice.choice((0.5, 0.5, 2.0, 2.0, 5.0, 5.0, 8.0, 12.0, 15.0, 25.0, 40.0)))

    def trigger(self, dag_id: str) -> str:
        """Make a run now; its run id."""
        engine = database.create(self.stage.settings, application="chaos")
        run_id = f"{dag_id}-{uuid.uuid4().hex[:8]}"
        self.stage.book.asked_for(dag_id, run_id, sure=False)
        try:
            transact(engine, manual_runs.trigger, dag_id, run_id=run_id)
            self.stage.book.asked_for(dag_id, run_id, sure=True)
        finally:
            engine.dispose()
        return run_id

    def surely(self, change: Callable[[], object]) -> None:
        """Do it, however often PostgreSQL is away meanwhile."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                change()
            except (DBAPIError, psycopg2.Error):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def at_work(self, worker: str) -> dict[int, int]:
        """Wait a moment for a worker to have something to lose; what it has."""
        deadline = time.monotonic() + LOOK_S
        while not (found := self.meter.running_on(worker)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found


Fault = Callable[[Act], "Recovery | None"]
