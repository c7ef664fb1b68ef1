"""A reproduction reads what its original has read, writes where nobody else reads, and counts for nothing else."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from support.reproductions import BODIES, DAY, EDGES, load, original, store, work
from support.run_actions import clear_
from support.scenario import Scenario, dag
from support.tables import SCHEMA, Lake, ids, rows

from paceline.exceptions import CannotReproduceError, NotFoundError
from paceline.states import TaskState
from scheduler.actions import runs as actions
from scheduler.actions.actor import Actor
from scheduler.catalog import gc, reproduction, scratch
from scheduler.store.db.database import transact
from scheduler.store.runs.reproductions import Reproduction
from scheduler.store.tables import history
from scheduler.store.upkeep import retention
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim, Ending


def actor(scenario: Scenario) -> Actor:
    return Actor(settings=scenario.settings, engine=scenario.engine, announce=lambda *_: None, name="cli:ada", made_by="cli")


def start(lake: Lake, *, keep: bool = False, despite_effects: bool = False, run_id: str = "one") -> Reproduction:
    return actions.reproduce(actor(lake.scenario), "d", run_id, keep=keep, despite_effects=despite_effects)


def compared(lake: Lake, made: Reproduction, ignored: tuple[str, ...] = ()) -> dict[str, Any]:
    return reproduction.compare(
        lake.scenario.settings, lake.scenario.engine, made.original_id, made.id, namespace=made.scratch, ignored=ignored
    )


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    return {row["table"]: row["is_equal"] for row in found["tables"]}


def test_a_reproduction_is_equal_and_changes_nothing_that_others_see(lake: Lake) -> None:
    person = lake.person()
    source = person.create_table("sales.source", SCHEMA)
    source.append(rows(1, 2))
    person.create_table("sales.orders", SCHEMA).append(rows(7))
    original(lake, BODIES, EDGES)
    source.append(rows(3))
    person.load_table("sales.orders").overwrite(rows(99))
    person.drop_table("sales.totals")
    before = {name: person.load_table(name).metadata_location for name in ("sales.source", "sales.orders")}
    made = start(lake)
    claims = work(lake, BODIES)
    assert [(claim.task_id, claim.run_id) for claim in claims] == [("load", made.run_id), ("total", made.run_id)]
    found = compared(lake, made)
    assert verdicts(found) == {"sales.orders": True, "sales.totals": True}
    assert found["inputs"] == []
    (orders, totals) = found["tables"]
    assert (orders["original_rows"], orders["reproduced_rows"], totals["original_rows"]) == (3, 3, 2)
    assert {name: person.load_table(name).metadata_location for name in before} == before
    assert sorted(person.list_tables("sales")) == [("sales", "orders"), ("sales", "source")]
    assert ids(person.load_table(f"{made.scratch}.sales.orders")) == [1, 2, 7]
    used = transact(lake.scenario.engine, history.used_by_run, "lake", "d", made.run_id, 10)
    assert [(row["table"], row["read_publication"]) for row in used if row["table"] == "sales.source"] == [("sales.source", 2)]


def test_the_tasks_of_a_reproduction_see_the_dates_and_the_type_of_the_original(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    lake.scenario.sql("update dag_run set run_type = 'scheduled', data_interval_end = %s where run_id = 'one'", DAY)
    made = start(lake)
    claims = work(lake, BODIES)
    assert {(one.run_type, one.logical_date, one.data_interval_end, one.conf["a"]) for one in claims} == {
        ("scheduled", DAY, DAY, 1)
    }
    assert {one.dag_run_id for one in claims} == {made.id}
    assert lake.scenario.rows("select run_type, logical_date, run_after from dag_run where id = %s", made.id) == [
        ("reproduction", None, DAY)
    ]


def test_another_result_differs_and_names_the_columns(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1, 2))
    original(lake, BODIES, EDGES)
    made = start(lake)

    def other(catalog: RestCatalog, claim: Claim) -> None:
        catalog.create_table("sales.orders", SCHEMA).append(rows(2, 1, who="other"))

    work(lake, BODIES | {"load": other})
    found = compared(lake, made)
    assert verdicts(found) == {"sales.orders": False, "sales.totals": True}
    (orders, _) = found["tables"]
    assert (orders["columns_that_differ"], orders["rows_equal"], orders["schema_equal"]) == (["who"], True, True)
    assert [(row["task_id"], row["table"]) for row in found["inputs"]] == [("load", "sales.source")]
    assert verdicts(compared(lake, made, ("who",)))["sales.orders"]


def test_a_table_that_only_one_of_them_published_differs(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    made = start(lake)

    def other(catalog: RestCatalog, claim: Claim) -> None:
        load(catalog, claim)
        catalog.rename_table("sales.orders", "sales.others")

    work(lake, {"load": other, "total": lambda catalog, claim: None})
    assert verdicts(compared(lake, made)) == {"sales.orders": False, "sales.others": False, "sales.totals": False}


def test_appends_of_parallel_tasks_and_of_others_are_compared_by_what_the_run_changed(lake: Lake) -> None:
    person = lake.person()
    table = person.create_table("sales.log", SCHEMA, properties={"paceline.rebase-appends": "true"})
    table.append(rows(1))

    def append(catalog: RestCatalog, claim: Claim) -> None:
        catalog.load_table("sales.log").append(rows(10 + claim.task_no))
        if claim.run_id == "one":
            person.load_table("sales.log").append(rows(100 + claim.task_no))

    from workers.tables import access

    store(lake.scenario, dag("d", {"a": [], "b": []}))
    lake.scenario.trigger("d", run_id="one", logical_date=DAY)

    def run() -> None:
        def outcome(claim: Claim) -> Ending:
            append(lake.catalog(table_tries.give_token(lake.scenario.hot.dicts, claim)), claim)
            return Ending(TaskState.SUCCESS, tables="lake")

        for _ in range(50):
            lake.scenario.turn()
            for message in lake.scenario.messages():
                claim = lake.scenario.claim(message)
                assert claim is not None
                ending = outcome(claim)
                access.repeated(
                    lambda claim=claim, ending=ending: lake.scenario.follower.report(claim, ending),
                    lambda error, claim=claim: access.move(lake.scenario.settings, lake.scenario.hot, claim, error),
                )
            if not lake.scenario.rows("select 1 from dag_run where state in ('queued', 'running')"):
                return

    run()
    made = start(lake)
    run()
    assert ids(person.load_table("sales.log")) == [1, 10, 11, 100, 101]
    (row,) = compared(lake, made)["tables"]
    assert row["is_equal"] and row["original_rows"] == 2 and "changed it meanwhile" in row["note"]


def test_nothing_but_the_reproduction_may_use_its_namespace(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    made = start(lake)
    seen: list[Any] = []

    def look(catalog: RestCatalog, claim: Claim) -> None:
        seen.append((sorted(catalog.list_namespaces()), catalog.table_exists("sales.orders"), sorted(catalog.list_tables("sales"))))
        load(catalog, claim)
        seen.append((catalog.table_exists("sales.orders"), sorted(catalog.list_tables("sales"))))
        catalog.create_namespace("mine")
        catalog.create_table("mine.t", SCHEMA)

    work(lake, BODIES | {"load": look})
    assert seen == [([("sales",)], False, [("sales", "source")]), (True, [("sales", "orders"), ("sales", "source")])]
    _, other = lake.attempt("other")
    assert other.list_namespaces() == [("sales",)]
    with pytest.raises(Exception, match="may not read the namespace"):
        other.load_table(f"{made.scratch}.sales.orders")
    listed = transact(lake.scenario.engine, history.tables, "lake", None, 10)
    assert [row["table"] for row in listed] == ["sales.orders", "sales.source", "sales.totals"]


def test_files_of_the_reproduction_are_in_its_folder_and_go_with_it(lake: Lake) -> None:
    person = lake.person()
    person.create_table("sales.source", SCHEMA).append(rows(1))
    person.create_table("sales.orders", SCHEMA).append(rows(7))
    original(lake, BODIES, EDGES)
    folder = lake.scenario.settings.home / "lake"
    files = {path for path in folder.rglob("*") if path.is_file()}
    made = start(lake)
    work(lake, BODIES)
    new = {path for path in folder.rglob("*") if path.is_file()} - files
    assert new and all(path.is_relative_to(folder / made.scratch) for path in new)
    assert scratch.drop(lake.scenario.settings, lake.scenario.engine, made.scratch) == len(new)
    assert {path for path in folder.rglob("*") if path.is_file()} == files
    assert not (folder / made.scratch).exists()
    for table in (
        "iceberg_tables where table_namespace",
        "table_version where namespace",
        "iceberg_namespace_properties where namespace",
    ):
        assert lake.scenario.rows(f"select 1 from {table} like 'reproduce%%'") == []
    assert ids(person.load_table("sales.orders")) == [1, 7]


def test_a_table_of_a_reproduction_lets_nobody_delete_shared_files(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    start(lake)
    seen: list[Any] = []

    def look(catalog: RestCatalog, claim: Claim) -> None:
        table = catalog.load_table("sales.source")
        seen.append((table.properties["gc.enabled"], table.metadata.metadata_log, "/reproduce_" in table.location()))
        load(catalog, claim)

    work(lake, BODIES | {"load": look})
    assert seen == [("false", [], True)]


def test_what_nobody_needs_any_more_goes_with_the_files_of_dead_tries(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    left, kept = start(lake), start(lake, keep=True)
    work(lake, BODIES)

    def there() -> set[str]:
        found = lake.scenario.rows(
            "select distinct split_part(namespace, '.', 1) from table_version where namespace like 'repro%%'"
        )
        return {row[0] for row in found}

    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=3600)
    assert there() == {left.scratch, kept.scratch}
    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0)
    assert there() == {kept.scratch}
    lake.scenario.sql("delete from dag_run where id = %s", kept.id)
    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0)
    assert there() == set()
    assert lake.scenario.rows("select dag_run_id from reproduction") == [(left.id,)]


def test_a_reproduction_counts_for_no_other_run_and_gives_no_notice(lake: Lake) -> None:
    scenario = lake.scenario
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    task = {"notify": ("on_success", "asset"), "outlets": ("table:sales.orders",), "depends_on_past": True}
    options = {"task": task, "notify": ("dag_success",), "deadlines": ()}
    original(lake, BODIES, EDGES, dag=options)
    scenario.sql("delete from notice")
    made = start(lake)
    work(lake, BODIES)
    assert scenario.run_state(made.id) == "success"
    assert scenario.rows("select kind from notice") == []
    scenario.sql("update task_instance set state = 'failed' where dag_run_id = %s", made.id)
    scenario.trigger("d", run_id="two", logical_date=datetime(2026, 3, 2, tzinfo=UTC))
    claims = work(lake, BODIES)
    assert {claim.run_id for claim in claims} == {"two"}, "it waits for the original, which has succeeded"


def test_a_cleared_reproduction_keeps_its_version(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    made = start(lake)
    work(lake, BODIES)
    version = lake.scenario.rows("select version_id from dag_run where id = %s", made.id)
    store(lake.scenario, dag("d", {**EDGES, "more": []}))
    clear_(lake.scenario, dag_id="d", run_id=made.run_id, latest=True)
    assert lake.scenario.rows("select version_id from dag_run where id = %s", made.id) == version


REFUSALS: dict[str, tuple[Callable[[Lake], object], str]] = {
    "open": (
        lambda lake: lake.scenario.sql("update dag_run set state = 'running', ended_at = null"),
        r"it has not ended \(running\)",
    ),
    "paused": (lambda lake: lake.scenario.sql("update dag_schedule set is_paused = true"), "its DAG is paused"),
    "inactive": (lambda lake: lake.scenario.sql("update dag set is_active = false"), "its DAG is in no file any more"),
    "without code": (lambda lake: lake.scenario.sql("update dag_version set bundle_version_id = null"), "its code was not kept"),
    "wrote nothing": (
        lambda lake: lake.scenario.sql("delete from table_version where run_id is not null"),
        "has read tables and written none",
    ),
    "used nothing": (
        lambda lake: lake.scenario.sql("with gone as (delete from table_read) delete from table_version where run_id is not null"),
        "it has used no tables",
    ),
    "no pins": (lambda lake: lake.scenario.sql("delete from table_pin"), "before Paceline recorded which state"),
    "gone": (
        lambda lake: lake.scenario.sql("delete from table_version where name = 'source'"),
        r"the state of sales\.source that it has read was removed; retention\.housekeeping_days",
    ),
    "old worker": (lambda lake: lake.scenario.sql("update process set schema = '0009'"), "is older than this version"),
}


@pytest.mark.parametrize(("change", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_a_run_that_cannot_be_reproduced_is_refused_with_the_reason(
    lake: Lake, change: Callable[[Lake], object], reason: str
) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    change(lake)
    with pytest.raises(CannotReproduceError, match=reason):
        start(lake)
    assert lake.scenario.rows("select count(*) from dag_run") == [(1,)]


def test_effects_beside_tables_need_consent(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES, dag={"options": {"load": {"outlets": ("s3://b/report.csv",)}}})
    lake.scenario.sql("update dag_version set data = jsonb_set(data::jsonb, '{tasks,1,operator}', '\"TriggerDagRunOperator\"')")
    with pytest.raises(CannotReproduceError, match=r"task load updates s3://b/report\.csv.*; task total triggers another DAG"):
        start(lake)
    assert start(lake, despite_effects=True).run_id == "reproduce__one__1"
    with pytest.raises(NotFoundError, match="has no run 'none'"):
        start(lake, run_id="none")


def test_a_reproduction_whose_original_is_gone_writes_nothing(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    start(lake)
    lake.scenario.turn()
    (message,) = lake.scenario.messages()
    claim = lake.scenario.claim(message)
    assert claim is not None
    lake.scenario.sql("delete from dag_run where run_id = 'one'")
    token = table_tries.give_token(lake.scenario.hot.dicts, claim)
    with pytest.raises(Exception, match="not that of a running try"):
        lake.catalog(token).load_table("sales.source")


def test_the_states_that_a_reproduction_reads_stay_while_it_runs(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    lake.person().load_table("sales.source").overwrite(rows(2))
    made = start(lake)
    lake.scenario.sql("update table_version set published_at = published_at - interval '40 days'")
    transact(lake.scenario.engine, retention.delete_rows, "table_versions", datetime.now(UTC))
    work(lake, BODIES)
    assert verdicts(compared(lake, made)) == {"sales.orders": True, "sales.totals": True}


def test_a_reproduction_of_a_run_that_read_one_state_reads_that_state(lake: Lake) -> None:
    person = lake.person()
    source = person.create_table("sales.source", SCHEMA)
    source.append(rows(1))

    def later(catalog: RestCatalog, claim: Claim) -> None:
        catalog.create_table_if_not_exists("sales.totals", SCHEMA).append(
            rows(*ids(catalog.load_table("sales.source")), *ids(catalog.load_table("sales.orders")))
        )

    bodies = BODIES | {"total": later}
    original(lake, bodies, EDGES, dag={"read_at": "run_start"}, between={"load": lambda: source.append(rows(5))})
    assert ids(person.load_table("sales.totals")) == [1, 1]
    made = start(lake)
    work(lake, bodies)
    found = compared(lake, made)
    assert verdicts(found) == {"sales.orders": True, "sales.totals": True}
    assert found["inputs"] == []
