"""plan: make the DAG runs that are due, with their task instances, and work out what comes next for each DAG."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from scheduler.authoring.timetable import RunTimes
from scheduler.serialized import SerializedDag, next_timetable
from scheduler.settings import Settings
from scheduler.store import runs, schedules
from scheduler.store.database import transaction
from scheduler.store.versions import Versions

BROKEN_PAUSE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Planned:
    """The runs made, the DAGs that could not be planned (by id, why), and whether more DAGs may be due."""

    runs: list[runs.CreatedRun]
    broken: dict[str, str]
    more: bool


class Plan:
    """Each DAG is planned in a transaction of its own, so that one that fails stops no other."""

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        self._engine = engine
        self._settings = settings
        self._versions = versions
        #: When a DAG that could not be planned is tried again; until then it takes no place among the due ones.
        self._set_aside: dict[str, datetime] = {}

    def run_once(self, now: datetime) -> Planned:
        limit = self._settings.scheduler.max_dagruns_to_create_per_loop
        self._set_aside = {dag_id: until for dag_id, until in self._set_aside.items() if until > now}
        with self._engine.begin() as connection:
            dag_ids = schedules.due(connection, now, limit=limit, without=list(self._set_aside))
        made: list[runs.CreatedRun] = []
        broken = {}
        for dag_id in dag_ids:
            try:
                made.extend(_plan_dag(self._engine, dag_id, now, self._versions, self._settings))
            except OperationalError:
                raise
            except Exception as error:
                broken[dag_id] = f"{type(error).__name__}: {error}"
                self._set_aside[dag_id] = now + BROKEN_PAUSE
        return Planned(made, broken, more=len(dag_ids) == limit)


@transaction
def _plan_dag(connection: Connection, dag_id: str, now: datetime, versions: Versions, settings: Settings) -> list[runs.CreatedRun]:
    due = schedules.hold(connection, dag_id)
    if due is None:
        return []
    dag = versions.dag(connection, due.version_id)
    upcoming = due.next
    if due.planned_version_id != due.version_id:
        upcoming = next_run(dag, schedules.newest_scheduled(connection, dag_id), now)
    made = []
    for _ in range(due.room):
        if upcoming is None or upcoming.run_after > now:
            break
        created = runs.create(
            connection,
            dag,
            runs.NewRun(
                dag_id=dag_id,
                run_id=f"scheduled__{upcoming.logical_date.isoformat()}",
                run_type="scheduled",
                version_id=due.version_id,
                logical_date=upcoming.logical_date,
                data_interval_start=upcoming.data_interval_start,
                data_interval_end=upcoming.data_interval_end,
                run_after=upcoming.run_after,
                conf={},
                triggered_by="schedule",
            ),
            default_queue=settings.core.default_queue,
        )
        if created is not None:
            made.append(created)
        upcoming = next_run(dag, upcoming.logical_date, now)
    schedules.plan(connection, dag_id, due.version_id, upcoming)
    return made


def next_run(dag: SerializedDag, last: datetime | None, now: datetime) -> RunTimes | None:
    """The run after `last` by the DAG's timetable; its logical date is always later than `last`."""
    return next_timetable(dag).next_run(last=last, start=dag.start, end=dag.end, catchup=dag.catchup, now=now)
