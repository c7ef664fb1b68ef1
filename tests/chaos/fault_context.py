"""What a fault receives: the cluster, a meter, a random generator of its own, and a limit for the time of a stop or a cut."""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import psycopg2
from sqlalchemy.exc import DBAPIError

from chaos.cluster import Cluster
from chaos.recovery import LIMIT_S, Meter, Recovery
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs

#: Seconds to look for a victim that is at work.
LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class FaultContext:
    """`longest_s` limits the time for which a process stays stopped or cut off."""

    cluster: Cluster
    meter: Meter
    rng: random.Random
    longest_s: float

    def pause_s(self) -> float:
        return min(self.longest_s, self.rng.choice((0.5, 0.5, 2.0, 2.0, 5.0, 5.0, 8.0, 12.0, 15.0, 25.0, 40.0)))

    def trigger(self, dag_id: str) -> str:
        """Create a run now, and return its run ID."""
        engine = database.create(self.cluster.settings, application="chaos")
        run_id = f"{dag_id}-{uuid.uuid4().hex[:8]}"
        self.cluster.history.requested(dag_id, run_id, sure=False)
        try:
            transact(engine, manual_runs.trigger, dag_id, run_id=run_id)
            self.cluster.history.requested(dag_id, run_id, sure=True)
        finally:
            engine.dispose()
        return run_id

    def retry_until_done(self, change: Callable[[], object]) -> None:
        """Repeat a change until PostgreSQL has stored it, for at most LIMIT_S."""
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

    def wait_for_tasks(self, worker: str) -> dict[int, int]:
        """Wait up to LOOK_S until a worker runs tasks, and return their try numbers by task instance."""
        deadline = time.monotonic() + LOOK_S
        while not (found := self.meter.running_on(worker)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found


Fault = Callable[[FaultContext], "Recovery | None"]
