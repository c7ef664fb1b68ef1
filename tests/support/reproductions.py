"""Runs of tables to be reproduced: a DAG whose code is kept, with two tasks that write tables by pyiceberg."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pyiceberg.catalog.rest import RestCatalog

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim, Ending
from support.scenario import Scenario, dag
from support.tables import SCHEMA, Lake, ids, rows

Body = Callable[[RestCatalog, Claim], object]
DAY = datetime(2026, 3, 1, tzinfo=UTC)


def store(scenario: Scenario, new: SerializedDag) -> None:
    """Store a DAG whose code is kept, as that of a bundle."""
    scenario.add(new)
    scenario.sql(
        """
        with one as (insert into bundle (name) values ('b') on conflict do nothing),
        version as (
            insert into bundle_version (bundle, number, digest, state, created_by, message, file_count, byte_count)
            select 'b', coalesce(max(number), 0) + 1, %s, 'ready', 'ada', '', 0, 0 from bundle_version returning id)
        update dag_version v set bundle_version_id = version.id from version, dag d where d.version_id = v.id and d.dag_id = %s
        """,
        new.content_hash,
        new.dag_id,
    )


def work(lake: Lake, bodies: dict[str, Body], *, between: dict[str, Callable[[], object]] | None = None) -> list[Claim]:
    """Run all tasks of open runs, each with its catalog. A body may return how its task ends; otherwise it succeeds."""
    seen: list[Claim] = []

    def outcome(claim: Claim) -> Ending:
        seen.append(claim)
        catalog = lake.catalog(table_tries.give_token(lake.scenario.hot.dicts, claim))
        ending = bodies[claim.task_id](catalog, claim)
        return ending if isinstance(ending, Ending) else Ending(TaskState.SUCCESS, tables="lake")

    def counted(claim: Claim) -> Ending:
        ending = outcome(claim)
        if between and claim.task_id in between:
            between.pop(claim.task_id)()
        return ending

    lake.scenario.run_to_end(outcome=counted)
    return seen


def original(lake: Lake, bodies: dict[str, Body], edges: dict[str, list[str]], **options: Any) -> str:
    """A run that has ended; its ID."""
    store(lake.scenario, dag("d", edges, **options.pop("dag", {})))
    lake.scenario.trigger("d", run_id="one", logical_date=DAY, conf={"a": 1})
    work(lake, bodies, **options)
    return "one"


EDGES: dict[str, list[str]] = {"load": [], "total": ["load"]}


def load(catalog: RestCatalog, claim: Claim) -> None:
    source = catalog.load_table("sales.source")
    orders = catalog.create_table_if_not_exists("sales.orders", SCHEMA)
    orders.append(rows(*ids(source), who="load"))


def total(catalog: RestCatalog, claim: Claim) -> None:
    found = ids(catalog.load_table("sales.orders"))
    catalog.create_table_if_not_exists("sales.totals", SCHEMA).append(rows(len(found), sum(found)))


BODIES: dict[str, Body] = {"load": load, "total": total}
