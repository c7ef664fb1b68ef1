"""Triggers runs at intervals, until they have about the planned number of task instances."""

import contextlib
import threading
import time
from collections.abc import Sequence
from random import Random

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from chaos.history import History
from chaos.plan import PlannedDag
from paceline.exceptions import ConflictError
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs

#: Runs that may be unfinished at once: more would only wait.
MOST_OPEN = 45
PAUSE_S = 0.25
OPEN = "select (select count(*) from task_instance), (select count(*) from dag_run where state in ('queued', 'running'))"


class LoadGenerator(threading.Thread):
    """`tis_per_second` for `seconds`; each DAG in turn, in an order of the seed's."""

    def __init__(
        self, settings: Settings, history: History, dags: Sequence[PlannedDag], seed: int, *, seconds: float, tis_per_second: float
    ) -> None:
        super().__init__(name="load", daemon=True)
        self._settings = settings
        self._history = history
        self._dags = dags
        self._rng = Random(f"{seed} load")
        self._seconds = seconds
        self._rate = tis_per_second
        self._done = threading.Event()
        self.triggered = 0

    def run(self) -> None:
        engine = database.create(self._settings, application="chaos load")
        started = time.monotonic()
        turn: list[str] = []
        try:
            while (passed := time.monotonic() - started) < self._seconds and not self._done.wait(PAUSE_S):
                turn = turn or self._next_turn()
                try:
                    with engine.connect() as connection:
                        tis, unfinished = connection.exec_driver_sql(OPEN).one()
                    if tis < self._rate * (passed + 10) and unfinished < MOST_OPEN:
                        self._trigger(engine, turn[0], f"r{self.triggered:04}")
                        turn.pop(0)
                        self.triggered += 1
                except DBAPIError:
                    continue  # away, as it shall be now and then; one that got through unseen is refused next time
        finally:
            engine.dispose()

    def _next_turn(self) -> list[str]:
        """A DAG that runs one at a time comes twice, so that one of the two runs has to wait."""
        dags = self._rng.sample(self._dags, len(self._dags))
        return [dag.dag_id for dag in dags for _ in range(2 if dag.max_active_runs == 1 else 1)]

    def _trigger(self, engine: Engine, dag_id: str, run_id: str) -> None:
        self._history.requested(dag_id, run_id, sure=False)
        with contextlib.suppress(ConflictError):  # the request before got through, and its answer did not
            transact(engine, manual_runs.trigger, dag_id, run_id=run_id)
        self._history.requested(dag_id, run_id, sure=True)

    def end(self) -> None:
        self._done.set()
        self.join(60)
