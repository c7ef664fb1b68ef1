"""What follows the end of DAG runs: DAGs whose runs keep failing are paused, and services that may start other runs run."""

import logging
from collections.abc import Mapping

from sqlalchemy import Engine

from paceline.states import RunState
from scheduler.services.service import LogLine
from scheduler.store.dags.dags import pause_if_failing
from scheduler.store.db.database import transact

#: The services that may start a run when another one has ended.
STARTERS = ("plan", "promote", "backfill")


def after_closing(engine: Engine, closed: Mapping[int, RunState]) -> tuple[tuple[str, ...], list[LogLine]]:
    """Pause the DAGs whose runs keep failing. Returns the services to wake, since other runs may start, and the lines to log."""
    failed = [run_id for run_id, state in closed.items() if state is RunState.FAILED]
    paused = transact(engine, pause_if_failing, failed) if failed else {}
    log = [
        (logging.WARNING, f"DAG {dag_id} is paused: its last {most} runs failed (max_consecutive_failed_dag_runs)")
        for dag_id, most in paused.items()
    ]
    return STARTERS if closed else (), log
