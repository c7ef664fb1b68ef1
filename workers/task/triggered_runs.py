"""Triggers runs of other DAGs for a task, over the connection of the hot path: a new one would plan every statement again."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg2 import errors
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.exceptions import ConflictError, PacelineError
from scheduler.settings import Settings
from scheduler.store.actions import clear
from scheduler.store.dags.versions import Versions
from scheduler.store.db import database
from scheduler.store.db.database import read, transact
from scheduler.store.moves.first import Limits
from scheduler.store.runs import manual_runs
from scheduler.store.runs.runs import CreatedRun
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import HotPath

MAY_NOT = "The database role of this worker may not do that ({}): `paceline db grant-worker ROLE{}` grants it."


def trigger(
    settings: Settings,
    dag_id: str,
    *,
    run_id: str | None,
    logical_date: datetime | None,
    conf: Mapping[str, Any],
    reset: bool,
    adopt_unless: Collection[str] | None = None,
    claim: Claim,
    hot: HotPath,
    versions: Versions,
    created: Callable[[CreatedRun], None],
    patient: Callable[[Callable[[], Any]], Any],
) -> str:
    """Create a run, or clear the existing one with `reset`. Returns its run ID.

    With `adopt_unless`, it first looks for the run that an earlier try has triggered. It returns that run, unless it is in one
    of these states. Then it is cleared if it is in the way of a new one. `created` is called with a new run after its commit.

    Raises NotFoundError, ConflictError or ParamError. StaleTryError, without a run, if the try is no longer the current one.
    """
    # Chosen before the first attempt. An answer may be lost with its connection, and the next attempt must not create another run.
    logical_date = logical_date or patient(hot.now)
    run_id = run_id or manual_runs.manual_run_id(logical_date)
    request = _Request(settings, hot, versions, claim, dag_id, run_id, logical_date, dict(conf), reset, adopt_unless, created)
    triggered: str = patient(functools.partial(_explained, request.run, clears=reset or adopt_unless is not None))
    return triggered


@dataclass(slots=True)
class _Request:
    """One call of `trigger`, which may need several attempts."""

    settings: Settings
    hot: HotPath
    versions: Versions
    claim: Claim
    dag_id: str
    run_id: str
    logical_date: datetime
    conf: dict[str, Any]
    reset: bool
    adopt_unless: Collection[str] | None
    created: Callable[[CreatedRun], None]
    attempts: int = 0

    def run(self) -> str:
        with self.hot.lent() as engine:
            return self._run(engine)

    def _run(self, engine: Engine) -> str:
        self.attempts += 1
        own = None
        if self.adopt_unless is not None:
            own = read(engine, manual_runs.child, self.claim.writer, self.dag_id, max_tries=self.claim.max_tries)
            if own is not None and (own.try_number == self.claim.try_number or own.state not in self.adopt_unless):
                return own.run_id
        try:
            self.created(transact(engine, self._create))
        except ConflictError:
            if self.attempts > 1 and transact(engine, manual_runs.triggered_by, self.dag_id, self.run_id) == self._by:
                return self.run_id
            known = transact(engine, manual_runs.existing, self.dag_id, run_id=self.run_id, logical_date=self.logical_date)
            if not (self.reset or (own is not None and own.run_id == known)):
                raise
            return self._clear(known)
        return self.run_id

    @property
    def _by(self) -> str:
        return f"{self.claim.dag_id}.{self.claim.task_id}"

    def _create(self, connection: Connection) -> CreatedRun:
        return manual_runs.trigger(
            connection,
            self.dag_id,
            run_id=self.run_id,
            logical_date=self.logical_date,
            conf=self.conf,
            triggered_by=self._by,
            core=self.settings.core,
            writer=self.claim.writer,
            max_tries=None if self.adopt_unless is None else self.claim.max_tries,
            versions=self.versions,
            limits=Limits.of(self.settings, self.hot.worker_id),
        )

    def _clear(self, run_id: str) -> str:
        """Clear the run, over a connection whose settings suit large runs too."""
        engine = database.create(self.settings, pool_size=1, application="paceline worker", actor=self.hot.worker_id)
        try:
            if self.conf:
                transact(engine, manual_runs.replace_conf, self.dag_id, run_id, self.conf, self.claim.writer)
            runs = Runs(dag_id=self.dag_id, run_id=run_id)
            transact(engine, clear.clear, runs, Tasks(), core=self.settings.core, writer=self.claim.writer)
            if self.adopt_unless is not None:
                transact(engine, manual_runs.remember_child, self.claim.writer, self.dag_id, run_id, max_tries=self.claim.max_tries)
        finally:
            engine.dispose()
        return run_id


def _explained(create: Callable[[], str], *, clears: bool) -> str:
    """Return `create()`. A missing right becomes one sentence; other errors of the database become those of psycopg2."""
    try:
        return create()
    except DBAPIError as error:
        if isinstance(error.orig, errors.InsufficientPrivilege):
            option = " --may-clear-runs" if clears else ""
            raise PacelineError(MAY_NOT.format(str(error.orig).strip(), option)) from None
        raise error.orig or error from None
