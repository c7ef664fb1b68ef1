"""Runs a DAG in this process. Its tasks read the variables and connections of the database, if that answers."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from paceline.authoring.connection import Connection
from paceline.exceptions import NotFoundError, PacelineError
from scheduler.cli import options
from scheduler.process import masked_output
from scheduler.settings import Settings
from scheduler.testing import folder, runs

if TYPE_CHECKING:
    from sqlalchemy import Engine


def run(
    settings: Settings,
    dag_id: str,
    *,
    logical_date: datetime,
    conf: dict[str, Any],
    given: Sequence[tuple[str, str]] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Run a DAG of the DAGs folder. Returns its state, and the state, seconds, result and reason of each task.

    With `quiet`, the output of tasks goes to stderr. NotFoundError if there is no such DAG; DagError if its file cannot be loaded.
    """
    dag, file = folder.find(settings, dag_id)
    conf = options.with_params(conf, given, dag.params_spec) or {}
    test_run = runs.prepare(dag, settings, file=file, logical_date=logical_date, conf=conf)
    test_run.store.stored = StoredSecrets(settings)
    tasks = []
    with contextlib.ExitStack() as stack:
        stack.callback(runs.end_spark)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr if quiet else sys.stdout))
        stack.enter_context(masked_output.masked((1,), (2,)))
        for row in runs.finished(settings, test_run):
            if not quiet:
                index = f"[{row['map_index']}]" if row["map_index"] >= 0 else ""
                click.echo(f"{row['task_id']}{index}: {row['state']}{': ' + row['reason'] if row['reason'] else ''}")
            tasks.append({name: value for name, value in row.items() if name != "xcoms"})
    return {"dag_id": dag_id, "run_id": test_run.store.dag_run.run_id, "state": str(test_run.state), "tasks": tasks}


class StoredSecrets:
    """The variables and connections of the database of the settings; none if it does not answer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def variable(self, key: str) -> str | None:
        from scheduler.store.secrets import variables

        row = self._read(variables.variable, key)
        return None if row is None else str(row["value"])

    def connection(self, conn_id: str) -> Connection | None:
        from scheduler.store.secrets import connections

        found: Connection | None = self._read(connections.connection, conn_id)
        return found

    def _read(self, read: Callable[..., Any], name: str) -> Any:
        from scheduler.store.db import database
        from scheduler.store.secrets.cipher import Cipher

        engine = self._engine
        if engine is None:
            return None
        try:
            return database.transact(engine, lambda connection: read(connection, name, Cipher.of(self._settings, make=False)))
        except NotFoundError:
            return None

    @functools.cached_property
    def _engine(self) -> Engine | None:
        from scheduler.store.db import database, migrate

        engine = database.create(self._settings, pool_size=0, application="paceline dags test")
        try:
            database.check(engine)
            migrate.check(engine)
        except PacelineError:
            return None
        return engine
