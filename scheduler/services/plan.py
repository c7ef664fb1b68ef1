"""plan: creates the DAG runs that are due, with their task instances, and computes the next run of each DAG."""

import logging
import math
import random
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine

from paceline.authoring.timetables.base import RunTimes
from scheduler.serialized.dag import SerializedDag, next_timetable
from scheduler.services.service import AT_ONCE, HELD_PAUSE_S, Result, TimedService, each
from scheduler.settings import Settings
from scheduler.store.dags import schedules
from scheduler.store.dags.schedules import Due
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import step, transact
from scheduler.store.runs import runs

BROKEN_PAUSE = timedelta(minutes=1)
#: Dates that one transaction processes. It skips dates that already have a run, manual or of a backfill.
MAX_DATES = 200


@dataclass(frozen=True, slots=True)
class Planned:
    """The created runs, the failed DAGs with their reasons, whether more DAGs may be due, and the time of the next one."""

    runs: list[runs.CreatedRun]
    broken: dict[str, str]
    more: bool
    next_due: datetime | None


class Plan(TimedService):
    """Plans each DAG in a transaction of its own, so that a DAG that fails does not stop the others."""

    name = "plan"
    pending = schedules.PENDING
    wakeups = frozenset({"plan"})

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        super().__init__(engine, settings)
        self._versions = versions
        #: When DAGs that failed are planned again. Until then they do not count towards the limit of a pass.
        self._set_aside: dict[str, datetime] = {}
        self._spread = uuid.uuid4().hex

    def run_once(self, now: datetime) -> Result:
        planned = self.plan(now)
        again_in_s: float | None = AT_ONCE
        if not planned.more:
            until_next_s = (planned.next_due - now).total_seconds() if planned.next_due else math.inf
            # Jitter: all schedulers at the same instant would find the same DAGs.
            until_next_s += random.uniform(0, HELD_PAUSE_S)  # noqa: S311
            again_in_s = until_next_s if until_next_s < self.interval_s else None
        return Result(
            runs=[run.id for run in planned.runs if not run.has_begun],
            services=["queue"] if any(run.waits for run in planned.runs) else [],
            again_in_s=again_in_s,
            log=[(logging.ERROR, f"DAG {dag_id} cannot be planned: {why}") for dag_id, why in planned.broken.items()],
        )

    def plan(self, now: datetime) -> Planned:
        limit = self._settings.scheduler.max_dagruns_to_create_per_loop
        self._set_aside = {dag_id: until for dag_id, until in self._set_aside.items() if until > now}
        dag_ids, next_due = transact(self._engine, _due, now, limit=limit, spread=self._spread, without=list(self._set_aside))
        done, broken = each(dag_ids, lambda dag_id: transact(self._engine, _plan_dag, dag_id, now, self._versions, self._settings))
        self._set_aside |= dict.fromkeys(broken, now + BROKEN_PAUSE)
        return Planned([run for of_dag in done.values() for run in of_dag], broken, more=len(dag_ids) == limit, next_due=next_due)


def _due(
    connection: Connection, now: datetime, *, limit: int, spread: str, without: Sequence[str]
) -> tuple[list[str], datetime | None]:
    """The DAGs that are due, and the time at which the next one is."""
    return schedules.due(connection, now, limit=limit, spread=spread, without=without), schedules.next_due(connection, now)


@step("plan")
def _plan_dag(connection: Connection, dag_id: str, now: datetime, versions: Versions, settings: Settings) -> list[runs.CreatedRun]:
    due = schedules.lock(connection, dag_id)
    if due is None:
        return []
    dag = versions.dag(connection, due.version_id)
    upcoming = _upcoming(connection, due, dag, now)
    new: list[runs.CreatedRun] = []
    for _ in range(MAX_DATES):
        if upcoming is None or upcoming.run_after > now or len(new) >= due.free_runs:
            break
        created = runs.create(
            connection, dag, _scheduled(due, upcoming), default_queue=settings.core.default_queue, beginning=runs.Beginning()
        )
        if created is not None:
            new.append(created)
        upcoming = schedules.next_run(dag, upcoming.logical_date, now, covered=upcoming.data_interval_end)
    schedules.plan(connection, dag_id, due.version_id, upcoming)
    return new


def _upcoming(connection: Connection, due: Due, dag: SerializedDag, now: datetime) -> RunTimes | None:
    """The next run: the planned one, unless the schedule was edited or newer runs are due."""
    is_old = due.planned_version_id != due.version_id
    if not is_old and (due.next is None or due.next.run_after > now or due.free_runs <= 0):
        return due.next
    last, covered = schedules.newest_scheduled(connection, due.dag_id) or (None, None)
    newest = schedules.next_run(dag, last, now, covered=covered)
    if is_old or next_timetable(dag).is_continuous:
        return newest
    # The planned run may have waited for max_active_runs or a paused DAG; without catchup only the newest due run counts.
    skips_ahead = not dag.catchup and newest is not None and newest.run_after <= now
    return newest if skips_ahead else due.next


def _scheduled(due: Due, times: RunTimes) -> runs.NewRun:
    return runs.NewRun(
        dag_id=due.dag_id,
        run_id=f"scheduled__{times.logical_date.isoformat()}",
        run_type="scheduled",
        version_id=due.version_id,
        triggered_by="schedule",
        **asdict(times),
    )
