"""Runs of other DAGs that a task makes, over a connection of its own: the one of the hot path stays as it is."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from psycopg2 import errors
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from scheduler.exceptions import ConflictError, PacelineError
from scheduler.settings import Settings
from scheduler.store.actions import clear
from scheduler.store.db import database
from scheduler.store.runs import runs
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker import external_runs
from scheduler.store.worker.claims import Claim

MAY_NOT = "The database role of this worker may not do that ({}): `paceline db grant-worker ROLE{}` grants it."


def trigger(
    settings: Settings,
    dag_id: str,
    *,
    run_id: str | None,
    logical_date: datetime | None,
    conf: Mapping[str, Any],
    reset: bool,
    claim: Claim,
    now: Callable[[], datetime],
    patient: Callable[[Callable[[], Any]], Any],
) -> str:
    """Make a run, or with `reset` clear the one that is there; its run id.

    NotFoundError, ConflictError, ParamError, StaleTryError: nothing is made for a try that is not the current one.
    """
    engine = database.create(settings, pool_size=1, application="paceline worker")
    triggered_by = f"{claim.dag_id}.{claim.task_id}"
    # Chosen before the first attempt: an answer may be lost with its connection, and another attempt must not make another run.
    logical_date = logical_date or now()
    run_id = run_id or runs.manual_run_id(logical_date)
    attempts = 0

    def make() -> str:
        nonlocal attempts
        attempts += 1
        try:
            return runs.trigger(
                engine,
                dag_id,
                run_id=run_id,
                logical_date=logical_date,
                conf=dict(conf),
                triggered_by=triggered_by,
                default_queue=settings.core.default_queue,
                conf_overrides_params=settings.core.dag_run_conf_overrides_params,
                writer=claim.writer,
                max_conf_bytes=settings.core.max_conf_bytes,
            ).run_id
        except ConflictError:
            if attempts > 1 and runs.triggered_by(engine, dag_id, run_id) == triggered_by:
                return run_id
            if not reset:
                raise
            return _clear(engine, settings, dag_id, run_id, logical_date, claim=claim)

    def attempt() -> str:
        try:
            return make()
        except DBAPIError as error:
            if isinstance(error.orig, errors.InsufficientPrivilege):
                option = " --may-clear-runs" if reset else ""
                raise PacelineError(MAY_NOT.format(str(error.orig).strip(), option)) from None
            raise error.orig or error from None

    try:
        made: str = patient(attempt)
        return made
    finally:
        engine.dispose()


def _clear(engine: Engine, settings: Settings, dag_id: str, run_id: str, logical_date: datetime, *, claim: Claim) -> str:
    with engine.connect() as connection:
        found = external_runs.run_id_of(
            lambda statement, parameters: connection.exec_driver_sql(statement, tuple(parameters)).all(),
            dag_id,
            run_id=run_id,
            logical_date=logical_date,
        )
    clear.clear(engine, Runs(dag_id=dag_id, run_id=found), Tasks(), core=settings.core, writer=claim.writer)
    return found
