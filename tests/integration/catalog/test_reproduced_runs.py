"""Reproductions of runs of all kinds: cleared, failed and mapped ones, and those whose tables were changed or dropped since."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from support.reproductions import BODIES, DAY, EDGES, Body, load, original, store, work
from support.run_actions import actor_of, clear_
from support.scenario import dag
from support.tables import SCHEMA, Lake, ids, rows

from paceline.authoring import execution
from paceline.exceptions import ConflictError, NotFoundError
from paceline.states import TaskState
from paceline.tables import append_once, overwrite_by_logical_date
from scheduler.actions import runs as actions
from scheduler.catalog import reproduction
from scheduler.store.db.database import transact
from scheduler.store.tables import comparisons, history
from scheduler.store.worker.claims import Claim, Ending


def reproduced(lake: Lake, bodies: dict[str, Body]) -> dict[str, Any]:
    """The comparison of a new reproduction, which executes these bodies."""
    made = actions.reproduce(actor_of(lake.scenario), "d", "one", keep=True, despite_effects=False)
    work(lake, bodies)
    found = reproduction.judge(lake.scenario.settings, lake.scenario.engine, made.id)
    assert found is not None
    return found


def replace(catalog: RestCatalog, claim: Claim) -> None:
    """Replace all rows by those of the source."""
    source = catalog.load_table("sales.source")
    orders = catalog.create_table_if_not_exists("sales.orders", SCHEMA)
    (orders.overwrite if ids(orders) else orders.append)(rows(*ids(source)))


def test_a_cleared_run_that_replaces_its_rows_is_equal(lake: Lake) -> None:
    source = lake.person().create_table("sales.source", SCHEMA)
    source.append(rows(1))
    lake.person().create_table("sales.orders", SCHEMA).append(rows(7))
    bodies = BODIES | {"load": replace, "total": lambda catalog, claim: ids(catalog.load_table("sales.orders"))}
    original(lake, bodies, EDGES)
    source.append(rows(2))
    clear_(lake.scenario, run_id="one")
    work(lake, bodies)
    found = reproduced(lake, bodies)
    assert (found["is_equal"], found["inputs"]) == (True, [])
    assert found["tables"][0]["original_rows"] == 2


def test_writes_that_a_repeated_run_replaces_are_equal_also_of_a_cleared_run(lake: Lake) -> None:
    source = lake.person().create_table("sales.source", SCHEMA)
    source.append(rows(1))
    lake.person().create_table("sales.log", SCHEMA).append(rows(7))

    def write(catalog: RestCatalog, claim: Claim) -> None:
        found = ids(catalog.load_table("sales.source"))
        names = {name: getattr(claim, name) for name in ("dag_id", "run_id", "task_id", "map_index")}
        ti = SimpleNamespace(**names, catalog=catalog, now=lambda: None)
        start = claim.logical_date
        assert start is not None
        interval = {"data_interval_start": start, "data_interval_end": start + timedelta(days=1)}
        with execution.current({"ti": ti, "dag": SimpleNamespace(timezone="UTC"), "logical_date": start, **interval}):
            append_once("sales.log", rows(*found))
            overwrite_by_logical_date("sales.days", pa.table({"day": [start.date()] * len(found), "id": found}), "day")

    bodies: dict[str, Body] = {"load": write, "total": lambda catalog, claim: None}
    original(lake, bodies, EDGES)
    source.append(rows(2))
    clear_(lake.scenario, run_id="one")
    work(lake, bodies)
    found = reproduced(lake, bodies)
    assert {row["table"]: (row["is_equal"], row["original_rows"]) for row in found["tables"]} == {
        "sales.days": (True, 2),
        "sales.log": (True, 3),
    }
    assert (found["is_equal"], found["inputs"]) == (True, [])


def test_a_failed_run_is_equal_to_one_that_fails_in_the_same_way(lake: Lake) -> None:
    def fail(catalog: RestCatalog, claim: Claim) -> Ending:
        catalog.create_table_if_not_exists("sales.totals", SCHEMA).append(rows(1))
        return Ending(TaskState.FAILED, reason="boom")

    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    bodies = BODIES | {"total": fail}
    original(lake, bodies, EDGES)
    found = reproduced(lake, bodies)
    assert (found["is_equal"], found["original_state"], found["reproduced_state"]) == (True, "failed", "failed")
    assert [row["table"] for row in found["tables"]] == ["sales.orders"]
    found = reproduced(lake, BODIES)
    assert (found["is_equal"], found["reproduced_state"]) == (False, "success")


def test_the_instances_of_a_mapped_task_may_write_several_tables(lake: Lake) -> None:
    person = lake.person()
    for name in ("a", "b"):
        person.create_table(f"sales.{name}", SCHEMA, properties={"paceline.rebase-appends": "true"}).append(rows(0))

    def write(catalog: RestCatalog, claim: Claim) -> None:
        for name in ("a", "b"):
            catalog.load_table(f"sales.{name}").append(rows(claim.map_index + 1, who=name))
        catalog.create_table_if_not_exists(f"sales.of_{claim.map_index}", SCHEMA).append(rows(claim.map_index))

    store(
        lake.scenario,
        dag(
            "d",
            {"m": []},
            options={"m": {"expand": {"kind": "product", "inputs": [{"literal": 3}]}, "notify": ("on_success", "asset")}},
        ),
    )
    lake.scenario.trigger("d", run_id="one", logical_date=DAY)
    work(lake, {"m": write})
    lake.scenario.sql("delete from notice")
    found = reproduced(lake, {"m": write})
    assert {row["table"]: row["is_equal"] for row in found["tables"]} == dict.fromkeys(
        ["sales.a", "sales.b", "sales.of_0", "sales.of_1", "sales.of_2"], True
    )
    assert (found["is_equal"], found["inputs"]) == (True, [])
    assert lake.scenario.rows("select kind from notice") == []


def test_tables_that_were_dropped_and_made_again_since_are_read_as_they_were(lake: Lake) -> None:
    person = lake.person()
    person.create_table("sales.source", SCHEMA).append(rows(1, 2))
    original(lake, BODIES, EDGES)
    for name in ("source", "orders", "totals"):
        person.drop_table(f"sales.{name}")
    person.create_table("sales.source", pa.schema([("other", pa.string())]))
    person.create_table("sales.totals", SCHEMA).append(rows(9))
    assert reproduced(lake, BODIES)["is_equal"]
    for name in ("source", "totals"):
        person.drop_table(f"sales.{name}")
    person.drop_namespace("sales")
    assert reproduced(lake, BODIES)["is_equal"]


def test_a_table_that_both_drop_and_make_again_is_compared_as_a_whole(lake: Lake) -> None:
    def renew(catalog: RestCatalog, claim: Claim) -> None:
        catalog.drop_table("sales.orders")
        catalog.create_table("sales.orders", SCHEMA).append(rows(1, 2))

    lake.person().create_table("sales.orders", SCHEMA).append(rows(7))
    bodies: dict[str, Body] = {"load": renew, "total": lambda catalog, claim: None}
    original(lake, bodies, EDGES)
    (row,) = reproduced(lake, bodies)["tables"]
    assert (row["is_equal"], row["original_rows"], row["note"]) == (True, 2, "")


def test_a_table_of_the_original_alone_may_have_been_removed(lake: Lake) -> None:
    person = lake.person()
    person.create_table("sales.source", SCHEMA).append(rows(1))

    def make(catalog: RestCatalog, claim: Claim) -> None:
        catalog.create_table_if_not_exists("sales.totals", SCHEMA).append(rows(1))

    def also(catalog: RestCatalog, claim: Claim) -> None:
        make(catalog, claim)
        catalog.load_table("sales.source").append(rows(2))

    original(lake, BODIES | {"total": make}, EDGES)
    person.load_table("sales.orders").overwrite(rows(9))
    lake.scenario.sql("update table_version set published_at = published_at - interval '31 days'; delete from table_try")
    transact(lake.scenario.engine, history.prune, "lake", "sales", "orders", datetime.now(UTC))
    found = reproduced(lake, BODIES | {"total": also})
    assert {row["table"]: row["note"] for row in found["tables"]} == {
        "sales.orders": "only the reproduction has published it, or what the original has published was removed",
        "sales.source": "only the reproduction has published it",
        "sales.totals": "",
    }


def test_nothing_is_compared_while_the_original_runs_again(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    original(lake, BODIES, EDGES)
    made = actions.reproduce(actor_of(lake.scenario), "d", "one", keep=True, despite_effects=False)
    work(lake, BODIES)
    clear_(lake.scenario, run_id="one")
    assert not transact(lake.scenario.engine, comparisons.is_due, "lake")
    with pytest.raises(ConflictError, match="one runs again"):
        reproduction.judge(lake.scenario.settings, lake.scenario.engine, made.id)
    work(lake, BODIES)
    assert transact(lake.scenario.engine, comparisons.is_due, "lake")


def test_runs_of_which_no_table_is_left_are_not_equal(lake: Lake) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1))
    bodies: dict[str, Body] = {"load": load, "total": lambda catalog, claim: None}
    original(lake, bodies, EDGES)
    made = actions.reproduce(actor_of(lake.scenario), "d", "one", keep=True, despite_effects=False)
    work(lake, bodies)
    lake.scenario.sql("delete from table_version where dag_id = 'd'")
    with pytest.raises(NotFoundError, match="are there any more"):
        reproduction.judge(lake.scenario.settings, lake.scenario.engine, made.id)
