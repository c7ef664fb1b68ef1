"""Runs of other DAGs that a task makes, over a connection of its own: the one of the hot path stays as it is."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from psycopg2 import errors
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from scheduler.exceptions import ConflictError, PacelineError
from scheduler.settings import Settings
from scheduler.store import clear, database, external, runs
from scheduler.store.selection import Runs, Tasks

MAY_NOT = "The database role of this worker may not do that ({}): `paceline db grant-worker ROLE{}` grants it."


def trigger(
    settings: Settings,
    dag_id: str,
    *,
    run_id: str | None,
    logical_date: datetime | None,
    conf: Mapping[str, Any],
    reset: bool,
    triggered_by: str,
    patient: Callable[[Callable[[], Any]], Any],
) -> str:
    """Make a run, or with `reset` clear the one that is there; its run id. NotFoundError, ConflictError, ParamError."""
    engine = database.create(settings, pool_size=1, application="paceline worker")

    def make() -> str:
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
            ).run_id
        except ConflictError:
            if not reset:
                raise
            return _clear(engine, settings, dag_id, run_id, logical_date)

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


def _clear(engine: Engine, settings: Settings, dag_id: str, run_id: str | None, logical_date: datetime | None) -> str:
    with engine.connect() as connection:
        found = external.run_id_of(
            lambda statement, parameters: connection.exec_driver_sql(statement, tuple(parameters)).all(),
            dag_id,
            run_id=run_id,
            logical_date=logical_date,
        )
    clear.clear(engine, Runs(dag_id=dag_id, run_id=found), Tasks(), core=settings.core)
    return found
