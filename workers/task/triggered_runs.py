"""Triggers runs of other DAGs for a task. It uses its own connection, separate from that of the hot path."""

import functools
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
from scheduler.store.db.database import transact
from scheduler.store.db.rows import EngineReader
from scheduler.store.runs import manual_runs
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
    """Create a run, or clear the existing one with `reset`. Returns its run ID.

    Raises NotFoundError, ConflictError or ParamError. StaleTryError, without a run, if the try is no longer the current one.
    """
    engine = database.create(settings, pool_size=1, application="paceline worker")
    triggered_by = f"{claim.dag_id}.{claim.task_id}"
    # Chosen before the first attempt. An answer may be lost with its connection, and the next attempt must not create another run.
    logical_date = logical_date or now()
    run_id = run_id or manual_runs.manual_run_id(logical_date)
    attempts = 0

    def create() -> str:
        nonlocal attempts
        attempts += 1
        try:
            return transact(
                engine,
                manual_runs.trigger,
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
            if attempts > 1 and transact(engine, manual_runs.triggered_by, dag_id, run_id) == triggered_by:
                return run_id
            if not reset:
                raise
            return _clear(engine, settings, dag_id, run_id, logical_date, claim=claim)

    try:
        created: str = patient(functools.partial(_explained, create, reset=reset))
        return created
    finally:
        engine.dispose()


def _explained(create: Callable[[], str], *, reset: bool) -> str:
    """Return `create()`. A missing right becomes one sentence; other errors of the database become those of psycopg2."""
    try:
        return create()
    except DBAPIError as error:
        if isinstance(error.orig, errors.InsufficientPrivilege):
            option = " --may-clear-runs" if reset else ""
            raise PacelineError(MAY_NOT.format(str(error.orig).strip(), option)) from None
        raise error.orig or error from None


def _clear(engine: Engine, settings: Settings, dag_id: str, run_id: str, logical_date: datetime, *, claim: Claim) -> str:
    with engine.connect() as connection:
        existing = external_runs.run_id_of(EngineReader(connection), dag_id, run_id=run_id, logical_date=logical_date)
    clear.clear(engine, Runs(dag_id=dag_id, run_id=existing), Tasks(), core=settings.core, writer=claim.writer)
    return existing
