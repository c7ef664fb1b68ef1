"""What `paceline plan` compares a folder with: the live DAGs of a bundle, their next and open runs, and what tasks need."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Self

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from sqlalchemy import Connection

from paceline.authoring.timetables.base import RunTimes
from paceline.states import RUN_UNFINISHED
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.difference import Details
from scheduler.settings import Settings
from scheduler.store.dags import schedules
from scheduler.store.db import clock
from scheduler.store.db.clock import LIVE_WORKER
from scheduler.store.db.rows import EngineReader

#: The active DAGs that do not belong to a bundle, with their assets.
OTHERS = "from dag d join dag_version v on v.id = d.version_id and d.is_active and d.bundle is distinct from %s"
UPDATED = (
    f"select array(select distinct jsonb_array_elements_text(t->'outlets') {OTHERS}"
    " cross join jsonb_array_elements(v.data->'tasks') t)"
)
CONSUMED = f"select array(select distinct jsonb_array_elements_text(v.data->'schedule'->'uris') {OTHERS})"
#: A DAG that pydantic writes and reads as it is stored.
StoredDag = Annotated[
    SerializedDag,
    PlainValidator(lambda data: data if isinstance(data, SerializedDag) else SerializedDag.from_json(data)),
    PlainSerializer(lambda dag: json.loads(dag.to_json())),
    WithJsonSchema({"type": "object"}),
]


@dataclass(frozen=True, slots=True)
class LiveBundle:
    """The live version of a bundle; its ID and number are None if none has been live."""

    name: str
    version_id: int | None = None
    number: int | None = None
    #: Why schedulers cannot read its source, or None.
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDag:
    """An active DAG of the bundle."""

    dag: StoredDag
    is_paused: bool
    #: The run that is planned next.
    next: RunTimes | None
    #: The open runs by the number of the version of the DAG that they keep.
    open_runs: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownDag:
    """A DAG that exists or existed before, with the logical date and the end of the interval of its newest scheduled run."""

    is_paused: bool
    last: datetime | None = None
    covered: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the folder of a plan names. The queue "" is the default one."""

    dags: Collection[str]
    pools: Collection[str]
    queues: Collection[str]
    connections: Collection[str]
    assets: Collection[str]


@dataclass(frozen=True, slots=True)
class Needs:
    """The names that tasks use and that do not exist: pools, queues without a live worker, connections."""

    pools: list[str]
    queues: list[str]
    connections: list[str]


@dataclass(frozen=True, slots=True)
class _Row:
    dag_id: str
    data: dict[str, object]
    is_paused: bool


@dataclass(frozen=True, slots=True)
class _Open:
    dag_id: str
    number: int
    runs: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The bundle and file of an active DAG; the bundle is None for the DAGs folder."""

    dag_id: str
    bundle: str | None
    file: str


@dataclass(frozen=True, slots=True)
class Assets:
    """The URIs that DAGs update, and those that DAGs wait for."""

    updated: set[str]
    consumed: set[str]

    @classmethod
    def of(cls, dags: Iterable[SerializedDag], others: "Assets") -> Self:
        """Those of these DAGs and of the others."""
        dags = list(dags)
        updated = {uri for dag in dags for task in dag.tasks for uri in task.outlets}
        return cls(updated | others.updated, {uri for dag in dags for uri in dag.schedule.get("uris", ())} | others.consumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What `paceline plan` compares a folder with."""

    now: datetime
    live_version: int | None
    #: The active DAGs of the bundle, by ID.
    dags: dict[str, LiveDag]
    #: The named DAGs that exist or existed before, and whether the other ones would start paused.
    known: dict[str, KnownDag]
    starts_paused: bool
    #: The named DAGs that the DAGs folder or another bundle has.
    owners: list[Owner]
    #: Those assets of other DAGs that the bundle has too.
    other_assets: Assets
    missing: Needs


def facts(
    connection: Connection, settings: Settings, name: str, names: Names, *, since: Mapping[str, SerializedDag] | None = None
) -> PlanFacts:
    """What a plan for a bundle compares a folder with that has these names: the live DAGs, or those of `since` as if they were."""
    now = clock.now(connection)
    live = dags(connection, name, now) if since is None else _as_if_live(connection, since, now)
    own = Assets.of((each.dag for each in live.values()), Assets(set(), set()))
    uris = {*names.assets, *own.updated, *own.consumed}
    others = other_assets(connection, name)
    taken = owners(connection, names.dags, name)
    return PlanFacts(
        now=now,
        live_version=bundle(connection, name).number,
        dags=live,
        known=known(connection, set(names.dags) - {owner.dag_id for owner in taken}),
        starts_paused=settings.core.dags_are_paused_at_creation,
        owners=taken,
        other_assets=Assets(others.updated & uris, others.consumed & uris),
        missing=missing(
            connection,
            pools=names.pools,
            queues={queue or settings.core.default_queue for queue in names.queues},
            connections=names.connections,
            silent_after_s=settings.worker.heartbeat_timeout,
        ),
    )


def bundle(connection: Connection, name: str) -> LiveBundle:
    """The live version of a bundle, which need not exist."""
    found = EngineReader(connection).objects(
        LiveBundle,
        "select b.name, v.id as version_id, v.number, b.problem from bundle b left join bundle_version v on v.id = b.version_id"
        " where b.name = %s",
        (name,),
    )
    return found[0] if found else LiveBundle(name)


def dags(connection: Connection, name: str, now: datetime) -> dict[str, LiveDag]:
    """The active DAGs of a bundle by ID."""
    reader = EngineReader(connection)
    found = reader.objects(
        _Row,
        """
        select d.dag_id, v.data, coalesce(s.is_paused, false) as is_paused
          from dag d join dag_version v on v.id = d.version_id left join dag_schedule s on s.dag_id = d.dag_id
         where d.bundle = %s and d.is_active order by d.dag_id
        """,
        (name,),
    )
    open_: dict[str, dict[int, int]] = {}
    for each in reader.objects(
        _Open,
        f"""
        select r.dag_id, v.number, count(*) as runs from dag_run r join dag_version v on v.id = r.version_id
         where r.dag_id = any(%s) and r.state in {RUN_UNFINISHED.sql} group by 1, 2 order by 1, 2
        """,
        ([row.dag_id for row in found],),
    ):
        open_.setdefault(each.dag_id, {})[each.number] = each.runs
    live = {}
    for row in found:
        dag = SerializedDag.from_json(row.data)
        planned = next(iter(schedules.upcoming(connection, row.dag_id, count=1)), None)
        newest = first_run(dag, known(connection, [row.dag_id]).get(row.dag_id), now)
        # As in services/plan: without catchup, only the newest due run counts.
        skips_ahead = (
            not dag.catchup and newest is not None and planned is not None and planned.run_after <= newest.run_after <= now
        )
        open_runs = open_.get(row.dag_id, {})
        live[row.dag_id] = LiveDag(dag=dag, is_paused=row.is_paused, next=newest if skips_ahead else planned, open_runs=open_runs)
    return live


def _as_if_live(connection: Connection, dags: Mapping[str, SerializedDag], now: datetime) -> dict[str, LiveDag]:
    before = known(connection, dags)
    return {
        dag_id: LiveDag(
            dag=dag, is_paused=dag_id in before and before[dag_id].is_paused, next=first_run(dag, before.get(dag_id), now)
        )
        for dag_id, dag in dags.items()
    }


def stored(connection: Connection, version_id: int) -> tuple[dict[str, SerializedDag], dict[str, Details]]:
    """The DAGs of a version of a bundle and the details of their tasks; of a refused one, those of the files without an error."""
    rows = connection.exec_driver_sql(
        """
        select e.key as dag_id, coalesce(d.data, e.value->'data') as data, coalesce(d.tasks, e.value->'tasks', '{}') as tasks
          from bundle_version v cross join jsonb_each(v.dags) e left join dag_version d on d.id = (e.value->>'version')::bigint
         where v.id = %s order by 1
        """,
        (version_id,),
    ).all()
    return {row.dag_id: SerializedDag.from_json(row.data) for row in rows}, {row.dag_id: row.tasks for row in rows}


def known(connection: Connection, dag_ids: Collection[str]) -> dict[str, KnownDag]:
    """What those of these DAGs have that exist or existed before."""
    rows = connection.exec_driver_sql("select dag_id, is_paused from dag_schedule where dag_id = any(%s)", (list(dag_ids),)).all()
    return {
        row.dag_id: KnownDag(row.is_paused, *(schedules.newest_scheduled(connection, row.dag_id) or (None, None))) for row in rows
    }


def first_run(dag: SerializedDag, before: KnownDag | None, now: datetime) -> RunTimes | None:
    """The first run that this version of a DAG would create if it became live now."""
    last, covered = (None, None) if before is None else (before.last, before.covered)
    return schedules.next_run(dag, last, now, covered=covered)


def owners(connection: Connection, dag_ids: Collection[str], bundle: str) -> list[Owner]:
    """The active DAGs among these that belong to the DAGs folder or to another bundle."""
    return EngineReader(connection).objects(
        Owner,
        "select dag_id, bundle, file from dag where is_active and dag_id = any(%s) and bundle is distinct from %s order by dag_id",
        (list(dag_ids), bundle),
    )


def other_assets(connection: Connection, bundle: str) -> Assets:
    """The assets of the active DAGs that do not belong to the bundle."""
    reader = EngineReader(connection)
    return Assets(*(set(reader.value(statement, (bundle,))) for statement in (UPDATED, CONSUMED)))


def missing(
    connection: Connection, *, pools: Collection[str], queues: Collection[str], connections: Collection[str], silent_after_s: float
) -> Needs:
    """Those of these pools, queues and connections that do not exist. Without any live worker, queues are not checked."""

    def names(statement: str, wanted: Collection[str], **parameters: object) -> list[str]:
        found = connection.exec_driver_sql(statement, {"names": sorted(wanted), **parameters})
        return sorted(found.scalars())

    wanted = "select w from unnest(%(names)s::text[]) w where"
    listening = f"select from process p where {LIVE_WORKER}"
    return Needs(
        names(f"{wanted} not exists (select from pool where name = w)", pools),
        names(f"{wanted} exists ({listening}) and not exists ({listening} and w = any(p.queues))", queues, silent=silent_after_s),
        names(f"{wanted} not exists (select from connection where conn_id = w)", connections),
    )
