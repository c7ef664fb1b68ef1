"""The consequences of closed runs: other runs may start, and a DAG whose runs keep failing is paused."""

import logging
from collections.abc import Mapping

from sqlalchemy import Engine

from scheduler.services.service import LogLine
from scheduler.states import RunState
from scheduler.store.dags import dags
from scheduler.store.db.database import transact

#: The services that may start a run when another one has ended.
STARTERS = ("plan", "promote", "backfill")


def follow_up(engine: Engine, closed: Mapping[int, RunState]) -> tuple[tuple[str, ...], list[LogLine]]:
    """Pause the DAGs that failed too often. Returns the services to wake, and the lines to log."""
    failed = [run_id for run_id, state in closed.items() if state is RunState.FAILED]
    paused = transact(engine, dags.pause_if_failing, failed) if failed else {}
    log = [
        (logging.WARNING, f"DAG {dag_id} is paused: its last {most} runs failed (max_consecutive_failed_dag_runs)")
        for dag_id, most in paused.items()
    ]
    return STARTERS if closed else (), log
