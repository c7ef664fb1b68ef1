"""assets: stores updates of assets for the DAGs that wait for them, and creates a run of each DAG whose condition is met."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.authoring.asset import ADDED, ALIAS, Condition
from paceline.authoring.timetables.base import Partition
from paceline.authoring.timetables.partitioned import WhenPartitioned
from scheduler.process import measures
from scheduler.serialized.dag import SerializedDag, next_timetable
from scheduler.services.service import AT_ONCE, Result, TimedService, each, is_away
from scheduler.settings import Settings
from scheduler.store.dags import assets, outlets, partitions
from scheduler.store.dags.assets import Update
from scheduler.store.dags.outlets import SucceededTask
from scheduler.store.dags.partitions import Pending
from scheduler.store.dags.versions import Versions
from scheduler.store.db import clock
from scheduler.store.db.database import step, transact
from scheduler.store.runs import runs

BROKEN_PAUSE = timedelta(minutes=1)
#: Successes of tasks with outlets that one transaction reads.
BATCH = 200


@dataclass(frozen=True, slots=True)
class _Stored:
    """The number of notices taken and of updates stored, and the task instances whose updates could not be, with the reason."""

    taken: int
    updates: int
    broken: list[tuple[str, str]]


class Assets(TimedService):
    """Stores updates and creates runs. Schedulers share the work: each locks the rows that it processes, and skips locked ones."""

    name = "assets"
    pending = assets.PENDING
    wakeups = frozenset({"plan"})

    def __init__(self, engine: Engine, settings: Settings, versions: Versions) -> None:
        super().__init__(engine, settings)
        self._versions = versions
        self._set_aside: dict[str, datetime] = {}

    def run_once(self, now: datetime) -> Result:
        stored = transact(self._engine, _store_updates, self._versions)
        if stored.updates:
            measures.count("asset.updates", stored.updates)
        self._set_aside = {dag_id: until for dag_id, until in self._set_aside.items() if until > now}
        dag_ids, unreadable = transact(self._engine, _candidates, self._versions, list(self._set_aside))
        created, failed = each(dag_ids, lambda dag_id: transact(self._engine, _create_run, dag_id, self._versions, self._settings))
        broken = unreadable | failed
        partitioned, failed = self._trigger_partitions(without={*self._set_aside, *broken})
        broken |= failed
        self._set_aside |= dict.fromkeys(broken, now + BROKEN_PAUSE)
        return Result(
            runs=[run.id for run in [*created.values(), *partitioned] if run is not None],
            again_in_s=AT_ONCE if stored.taken >= BATCH else None,
            log=[
                *((logging.ERROR, f"DAG {dag_id} cannot be run for its assets: {why}") for dag_id, why in broken.items()),
                *((logging.ERROR, f"The updates of assets by {of} wait: {why}") for of, why in stored.broken),
            ],
        )

    def _trigger_partitions(self, without: Collection[str]) -> tuple[list[runs.CreatedRun | None], dict[str, str]]:
        """Create the runs of partitions of which all updates that they wait for have arrived."""
        ready, unreadable = transact(self._engine, _ready_partitions, self._versions, without)
        created, failed = each(
            ready, lambda place: transact(self._engine, _create_partition_run, *place, self._versions, self._settings)
        )
        return list(created.values()), {dag_id: why for (dag_id, _), why in (unreadable | failed).items()}


@step("update", lambda stored: stored.taken)
def _store_updates(connection: Connection, versions: Versions) -> _Stored:
    """Turn the notices of successful tasks into updates of their outlets. One that cannot be stored is set aside.

    A table that a streaming query has published is updated, too, while its task runs.
    """
    taken = [*outlets.take_successes(connection, limit=BATCH), *outlets.take_streamed(connection, limit=BATCH)]
    successes = {success.notice_id: success for success in taken}
    found, broken = each(successes, lambda notice: _updates(connection, versions, successes[notice]), in_transaction=True)
    try:
        _store(connection, *found.values())
    except DBAPIError as error:
        if is_away(error):
            raise
        # PostgreSQL accepts one of them not: which one is known after each is stored alone.
        stored, unstorable = each(found, lambda notice: _store(connection, found[notice]))
        found, broken = {notice: found[notice] for notice in stored}, broken | unstorable
    if broken:
        outlets.set_aside(connection, broken, successes)
    updates = sum(len(updates) for updates, _ in found.values())
    lost = [(successes[notice], why) for notice, why in broken.items()]
    return _Stored(len(successes), updates, [(f"{of.dag_id}.{of.task_id} (run {of.run_id})", why) for of, why in lost])


def _store(connection: Connection, *of_tasks: tuple[list[Update], Mapping[str, str]]) -> None:
    """Store the updates of tasks, with the names of their assets, or none of them."""
    with connection.begin_nested():
        names = {uri: name for _, names in of_tasks for uri, name in names.items()}
        assets.store(connection, [update for updates, _ in of_tasks for update in updates], names)


def _candidates(connection: Connection, versions: Versions, without: list[str]) -> tuple[list[str], dict[str, str]]:
    """DAGs whose condition is met, or with updates that they no longer wait for; and unreadable DAGs, with the reason.

    It locks nothing, since most DAGs still wait for other updates.
    """
    collected = {row.dag_id: row for row in assets.collected(connection, without=without)}

    def is_needed(dag_id: str) -> bool:
        uris, dag = collected[dag_id].uris, versions.dag(connection, collected[dag_id].version_id)
        return _is_met(dag, uris) or not uris.issubset(_named(dag))

    examined, broken = each(collected, is_needed, in_transaction=True)
    return [dag_id for dag_id, is_needed in examined.items() if is_needed], broken


def _ready_partitions(
    connection: Connection, versions: Versions, without: Collection[str]
) -> tuple[list[tuple[str, str]], dict[tuple[str, str], str]]:
    """The DAG and key of partitions to create a run of; and of partitions of unreadable DAGs, with the reason. It locks nothing."""
    pending = {(row.dag_id, row.key): row for row in partitions.pending(connection, without=without)}
    examined, broken = each(
        pending, lambda place: _is_due(versions.dag(connection, pending[place].version_id), pending[place]), in_transaction=True
    )
    return [place for place, is_due in examined.items() if is_due], broken


def _is_due(dag: SerializedDag, pending: Pending) -> bool:
    """Whether the partition has its updates, or the DAG has no partitions any more, so that they must be deleted."""
    table = next_timetable(dag)
    return not isinstance(table, WhenPartitioned) or (_condition(dag) is not None and table.is_met(pending.key, pending.arrived))


@step("asset")
def _create_partition_run(
    connection: Connection, dag_id: str, key: str, versions: Versions, settings: Settings
) -> runs.CreatedRun | None:
    held = assets.lock(connection, dag_id)
    pending = partitions.read(connection, dag_id, key) if held is not None else None
    if held is None or pending is None:
        return None
    dag = versions.dag(connection, held.version_id)
    table = next_timetable(dag)
    if not isinstance(table, WhenPartitioned):
        partitions.forget(connection, dag_id, key)
        return None
    if not _is_due(dag, pending):
        return None
    date = table.date_of(key, sorted(pending.arrived), pending.date)
    created = _create(connection, dag, held.version_id, settings, Partition(key, date))
    if created is not None:
        assets.consume(connection, dag_id, created.id, key)
    return created


def _updates(connection: Connection, versions: Versions, success: SucceededTask) -> tuple[list[Update], Mapping[str, str]]:
    """The updates of a task, and the names of the assets of its DAG by URI."""
    dag = versions.dag(connection, success.version_id)
    # By name and not by number: in a newer version of the run, the task can have another number, or be missing.
    no = dag.number.get(success.task_id)
    outlets = [] if no is None else [uri for uri in dag.tasks[no].outlets if success.table in (None, uri)]
    return [update for uri in outlets for update in _of_outlet(uri, success)], dag.asset_names


def _of_outlet(uri: str, success: SucceededTask) -> list[Update]:
    """The update of an asset. For an alias, an update of each asset that the task added, and one of the alias for each of them."""
    extra = success.extras.get(uri, {})
    if not uri.startswith(ALIAS):
        return [Update(uri=uri, extra=extra, by=success, partition=partition) for partition in _partitions(uri, success)]
    added = [(entry["uri"], entry["extra"]) for entry in extra.get(ADDED, ())]
    return [Update(uri=asset, extra=own, by=success, partition=success.partition) for asset, own in added] + [
        Update(uri=uri, extra={**own, "asset": asset}, by=success, partition=success.partition) for asset, own in added
    ]


def _partitions(uri: str, success: SucceededTask) -> list[Partition | None]:
    """Those that the task named for the asset, else that of its run. Only the partition of the run has its date."""
    own = success.partition
    named = success.partitions.get(uri, ())
    return [own if own is not None and own.key == key else Partition(key, None) for key in named] or [own]


@step("asset")
def _create_run(connection: Connection, dag_id: str, versions: Versions, settings: Settings) -> runs.CreatedRun | None:
    held = assets.lock(connection, dag_id)
    if held is None:
        return None
    dag = versions.dag(connection, held.version_id)
    assets.forget(connection, dag_id, but=_named(dag))
    if not _is_met(dag, held.uris):
        return None
    created = _create(connection, dag, held.version_id, settings)
    if created is not None:
        assets.consume(connection, dag_id, created.id)
    return created


def _create(
    connection: Connection, dag: SerializedDag, version_id: int, settings: Settings, partition: Partition | None = None
) -> runs.CreatedRun | None:
    now = clock.now(connection)
    return runs.create(
        connection,
        dag,
        runs.NewRun(
            dag_id=dag.dag_id,
            run_id=f"asset_triggered__{now.astimezone(UTC).isoformat()}",
            run_type="asset_triggered",
            version_id=version_id,
            run_after=now,
            triggered_by="asset",
            partition=partition,
        ),
        default_queue=settings.core.default_queue,
    )


def _is_met(dag: SerializedDag, uris: frozenset[str]) -> bool:
    condition = _condition(dag)
    return condition is not None and condition.is_met(uris)


def _named(dag: SerializedDag) -> list[str]:
    condition = _condition(dag)
    return [] if condition is None else condition.uris


def _condition(dag: SerializedDag) -> Condition | None:
    allowed = not dag.allowed_run_types or "asset_triggered" in dag.allowed_run_types
    return next_timetable(dag).condition if allowed else None
