"""promote: start queued runs, make due retries ready, decide what each run asks for next, and close the runs that ended."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from scheduler.deciding.evaluate import evaluate, run_state
from scheduler.settings import Settings
from scheduler.states import RunState, TaskState
from scheduler.store import instances, runs
from scheduler.store.database import transaction
from scheduler.store.versions import Versions


@dataclass(frozen=True, slots=True)
class Promoted:
    """What moved: runs started and closed, task instances made ready; hinted runs that another scheduler held; and runs that
    could not be decided, with the reason.
    """

    started: list[int]
    closed: dict[int, RunState]
    ready: int
    held_elsewhere: set[int]
    broken: dict[int, str]


class Promote:
    """Any number of schedulers may promote at once: each run is locked while it is decided, and held ones are passed over.

    Each run has a transaction of its own, so that one that fails stops no other.
    """

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        self._engine = engine
        self._settings = settings
        self._versions = versions

    def run_once(self, now: datetime, hinted: Collection[int] | None = None) -> Promoted:
        """Look at the runs hinted at and just started; without hints sweep: at those that need it most."""
        limit = self._settings.scheduler.max_dagruns_per_loop_to_schedule
        started = runs.start_queued(self._engine)
        ready = _retry_due(self._engine, self._settings.scheduler.max_tis_per_query)
        looked_for = _candidates(self._engine, limit) if hinted is None else hinted
        wanted = sorted({*looked_for, *started})
        closed: dict[int, RunState] = {}
        not_held: set[int] = set()
        broken: dict[int, str] = {}
        for run in wanted:
            try:
                examined = _examine(self._engine, run, self._versions)
            except OperationalError:
                raise
            except Exception as error:
                broken[run] = f"{type(error).__name__}: {error}"
                _set_aside(self._engine, run)
                continue
            if examined is None:
                not_held.add(run)
                continue
            ready += examined.ready
            if examined.closed is not None:
                closed[run] = examined.closed
        missed = not_held & set(hinted or ())
        held_elsewhere = _still_running(self._engine, missed) if missed else set()
        return Promoted(started, closed, ready, held_elsewhere, broken)


@dataclass(frozen=True, slots=True)
class _Examined:
    ready: int
    closed: RunState | None


@transaction
def _retry_due(connection: Connection, limit: int) -> int:
    return instances.retry_due(connection, limit=limit)


@transaction
def _candidates(connection: Connection, limit: int) -> list[int]:
    return runs.to_examine(connection, limit=limit)


@transaction
def _still_running(connection: Connection, ids: Collection[int]) -> set[int]:
    return runs.still_running(connection, ids)


@transaction
def _set_aside(connection: Connection, dag_run_id: int) -> None:
    """To the back of the line, so that the sweep gets on to the others."""
    runs.mark_examined(connection, dag_run_id)


@transaction
def _examine(connection: Connection, dag_run_id: int, versions: Versions) -> _Examined | None:
    """One run in one short transaction: lock, read, decide, write."""
    version_id = runs.hold(connection, dag_run_id)
    if version_id is None:
        return None
    dag = versions.dag(connection, version_id)
    states = instances.states_of(connection, dag_run_id)
    decisions = evaluate(dag, states)
    if decisions:
        instances.decide(connection, dag_run_id, decisions)
        states = instances.states_of(connection, dag_run_id)
    ready = sum(decision.state is TaskState.SCHEDULED for decision in decisions)
    ended = run_state(dag, states)
    if ended is None:
        runs.mark_examined(connection, dag_run_id)
    else:
        runs.close(connection, dag_run_id, ended)
    return _Examined(ready, ended)
