"""assets: pass updates on to the DAGs that wait for them, and make one run of each whose condition is met."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from scheduler.authoring.asset import Condition
from scheduler.serialized.dag import SerializedDag, next_timetable
from scheduler.services.service import AT_ONCE, Result, TimedService
from scheduler.settings import Settings
from scheduler.store.dags import assets
from scheduler.store.dags.assets import Success, Update
from scheduler.store.dags.versions import Versions
from scheduler.store.db import clock
from scheduler.store.db.database import transaction, transaction_at
from scheduler.store.runs import runs

BROKEN_PAUSE = timedelta(minutes=1)
#: Tasks with outlets that one transaction passes on.
BATCH = 200


@dataclass(frozen=True, slots=True)
class Triggered:
    """The runs made, the DAGs for which that failed (by id, why), and whether more updates wait to be passed on."""

    runs: list[runs.CreatedRun]
    broken: dict[str, str]
    more: bool


class Assets(TimedService):
    """Any number of schedulers at once: a notice, and a DAG's dag_schedule row, is taken by one and passed over by the others."""

    name = "assets"
    pending = assets.PENDING
    wakeups = frozenset({"plan"})

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        self._engine = engine
        self._settings = settings
        self._versions = versions
        self._set_aside: dict[str, datetime] = {}
        self.interval_s = settings.scheduler.scheduler_idle_sleep_time

    def run_once(self, now: datetime) -> Result:
        triggered = self.trigger(now)
        return Result(
            runs=[made.id for made in triggered.runs],
            again_in_s=AT_ONCE if triggered.more else None,
            log=[(logging.ERROR, f"DAG {dag_id} cannot be run for its assets: {why}") for dag_id, why in triggered.broken.items()],
        )

    def trigger(self, now: datetime) -> Triggered:
        taken = _pass_on(self._engine, self._versions)
        self._set_aside = {dag_id: until for dag_id, until in self._set_aside.items() if until > now}
        made: list[runs.CreatedRun] = []
        dag_ids, broken = _promising(self._engine, self._versions, list(self._set_aside))
        for dag_id in dag_ids:
            try:
                created = _make_run(self._engine, dag_id, self._versions, self._settings)
            except OperationalError:
                raise
            except Exception as error:
                broken[dag_id] = f"{type(error).__name__}: {error}"
                continue
            if created is not None:
                made.append(created)
        self._set_aside |= dict.fromkeys(broken, now + BROKEN_PAUSE)
        return Triggered(made, broken, more=taken == BATCH)


@transaction_at("update")
def _pass_on(connection: Connection, versions: Versions) -> int:
    """Turn notices of tasks into updates of their outlets; how many notices."""
    successes = assets.take_successes(connection, limit=BATCH)
    dags = {one.version_id: versions.dag(connection, one.version_id) for one in successes}
    updates = [update for one in successes for update in _updates(dags[one.version_id], one)]
    assets.store(connection, updates, {uri: name for dag in dags.values() for uri, name in dag.asset_names.items()})
    return len(successes)


@transaction
def _promising(connection: Connection, versions: Versions, without: list[str]) -> tuple[list[str], dict[str, str]]:
    """DAGs for which enough was updated, or something they no longer wait for; and those that cannot be read, with the reason.

    Most wait for more, and then nothing is locked.
    """
    found, broken = [], {}
    for seen in assets.collected(connection, without=without):
        try:
            dag = versions.dag(connection, seen.version_id)
            if _is_met(dag, seen.uris) or not seen.uris.issubset(_named(dag)):
                found.append(seen.dag_id)
        except DBAPIError:
            raise
        except Exception as error:
            broken[seen.dag_id] = f"{type(error).__name__}: {error}"
    return found, broken


def _updates(dag: SerializedDag, one: Success) -> list[Update]:
    # By name and not by number: a run goes on with a newer version in which the task has another number, or none.
    no = dag.number.get(one.task_id)
    outlets = () if no is None else dag.tasks[no].outlets
    return [Update(uri=uri, extra=one.extras.get(uri, {}), by=one) for uri in outlets]


@transaction_at("asset")
def _make_run(connection: Connection, dag_id: str, versions: Versions, settings: Settings) -> runs.CreatedRun | None:
    held = assets.hold(connection, dag_id)
    if held is None:
        return None
    dag = versions.dag(connection, held.version_id)
    assets.forget(connection, dag_id, but=_named(dag))
    if not _is_met(dag, held.uris):
        return None
    now = clock.now(connection)
    created = runs.create(
        connection,
        dag,
        runs.NewRun(
            dag_id=dag_id,
            run_id=f"asset_triggered__{now.astimezone(UTC).isoformat()}",
            run_type="asset_triggered",
            version_id=held.version_id,
            logical_date=None,
            data_interval_start=None,
            data_interval_end=None,
            run_after=now,
            conf={},
            triggered_by="asset",
        ),
        default_queue=settings.core.default_queue,
    )
    if created is not None:
        assets.consume(connection, dag_id, created.id)
    return created


def _is_met(dag: SerializedDag, uris: frozenset[str]) -> bool:
    condition = _condition(dag)
    return condition is not None and condition.is_met(uris)


def _named(dag: SerializedDag) -> list[str]:
    condition = _condition(dag)
    return [] if condition is None else condition.uris


def _condition(dag: SerializedDag) -> Condition | None:
    allowed = not dag.allowed_run_types or "asset_triggered" in dag.allowed_run_types
    return next_timetable(dag).condition if allowed else None
