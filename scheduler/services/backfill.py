"""backfill: creates the next runs of each backfill within its own max_active_runs, and ends backfills that are complete."""

import logging
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from scheduler.services.service import AT_ONCE, Result, Service, each
from scheduler.settings import Settings
from scheduler.store.actions import backfills as steps
from scheduler.store.actions.backfills import why_left_out
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import step, transact
from scheduler.store.runs import runs


@dataclass(frozen=True, slots=True)
class _Step:
    """The runs created or cleared, and whether the backfill ended or can continue now."""

    runs: list[int]
    ended: bool = False
    more: bool = False


class Backfill(Service):
    """Creates each run in a transaction of its own, which locks the row of the backfill before it counts its open runs.

    So all schedulers together never exceed `max_active_runs`, and a backfill that fails does not stop the others.
    """

    name = "backfill"
    pending = steps.PENDING
    wakeups = frozenset({"plan"})

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        super().__init__(engine, settings)
        self._versions = versions

    def run_once(self) -> Result:
        done, broken = each(transact(self._engine, steps.unfinished), self._work_through)
        return Result(
            runs=[run for step in done.values() for run in step.runs],
            again_in_s=AT_ONCE if any(step.more for step in done.values()) else None,
            log=[
                *((logging.ERROR, f"Backfill {backfill_id} cannot continue: {why}") for backfill_id, why in broken.items()),
                *((logging.INFO, f"Backfill {backfill_id} is complete") for backfill_id, step in done.items() if step.ended),
            ],
        )

    def _work_through(self, backfill_id: int) -> _Step:
        new: list[int] = []
        for _ in range(self._settings.scheduler.max_dagruns_to_create_per_loop):
            step = transact(self._engine, _step, backfill_id, self._versions, self._settings)
            new += step.runs
            if not step.more:
                return _Step(new, ended=step.ended)
        return _Step(new, more=True)


@step("backfill", lambda step: step.runs or step.ended)
def _step(connection: Connection, backfill_id: int, versions: Versions, settings: Settings) -> _Step:
    """Process the next date if the limit allows a run; with no date left, end the backfill after its last run."""
    held = steps.lock(connection, backfill_id)
    if held is None:
        return _Step([])
    open_runs = steps.open_runs(connection, held.id)
    date = steps.next_date(connection, held.id)
    if date is None:
        if open_runs == 0:
            steps.end(connection, held.id)
        return _Step([], ended=open_runs == 0)
    if not held.goes_on or open_runs >= held.max_active_runs:
        return _Step([])
    run = _take(connection, held, date, versions, settings)
    return _Step([] if run is None else [run], more=True)


def _take(
    connection: Connection, held: steps.LockedBackfill, date: steps.Date, versions: Versions, settings: Settings
) -> int | None:
    """Create the run of a date, or clear the existing one, and return its ID.

    None if the date is left out, or if the run was created or cleared concurrently; then the next step tries again.
    """
    existing = steps.run_of(connection, held.dag_id, date.logical_date)
    reason = why_left_out(existing.state if existing else None, held.reprocess)
    if reason is None and existing is not None:
        repeated = steps.repeat(connection, held, date, existing.id, core=settings.core, versions=versions)
        return existing.id if repeated else None
    if reason is None:
        created = _create(connection, held, date, versions, settings)
        if created is not None:
            steps.take(connection, held.id, date.ordinal, created)
            return created
        if steps.run_of(connection, held.dag_id, date.logical_date) is None:
            reason = f"a run of another date has the run ID {_run_id(date)}"
    if reason is not None:
        steps.leave_out(connection, held.id, date.ordinal, reason)
    return None


def _create(
    connection: Connection, held: steps.LockedBackfill, date: steps.Date, versions: Versions, settings: Settings
) -> int | None:
    created = runs.create(
        connection,
        versions.dag(connection, held.version_id),
        runs.NewRun(
            dag_id=held.dag_id,
            run_id=_run_id(date),
            run_type="backfill",
            version_id=held.version_id,
            logical_date=date.logical_date,
            data_interval_start=date.data_interval_start,
            data_interval_end=date.data_interval_end,
            run_after=date.data_interval_end,
            conf=held.conf or {},
            triggered_by="backfill",
        ),
        default_queue=settings.core.default_queue,
    )
    return None if created is None else created.id


def _run_id(date: steps.Date) -> str:
    return f"backfill__{date.logical_date.isoformat()}"
