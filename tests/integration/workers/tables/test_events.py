"""The event of a table that a task has updated: its snapshot, its rows and the change of its columns."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyiceberg.types import DoubleType
from support.tables import SCHEMA, Lake, rows

from paceline.authoring.asset import Asset
from paceline.states import TaskState
from paceline.tables import sql
from paceline.tables.duckdb_engine import DuckDbEngine
from scheduler.services.assets import Assets
from scheduler.store.dags.versions import Versions
from scheduler.store.worker import xcoms
from scheduler.store.worker.claims import Ending
from workers.tables import access
from workers.task.follow import DatabaseStore

TABLES = [Asset.table("sales.old"), Asset.table("sales.new"), Asset.table("sales.other")]


def extras(lake: Lake) -> dict[str, dict[str, Any]]:
    """The extra of the newest event of each asset, after the service has run."""
    Assets(lake.scenario.engine, lake.scenario.settings, Versions()).run_once(datetime(2026, 3, 1, tzinfo=UTC))
    return dict(lake.scenario.rows("select uri, extra from asset_event order by id"))


def test_an_event_has_what_all_commits_of_the_try_have_changed(lake: Lake) -> None:
    person = lake.person()
    person.create_table("sales.old", SCHEMA).append(rows(1, 2, 3))
    claim = lake.claim(task={"outlets": tuple(one.uri for one in TABLES), "notify": ("asset",)})
    access.serve_at(lake.uri)
    store = DatabaseStore(lake.scenario.settings, lake.scenario.hot, lake.scenario.follower)
    catalog = lake.catalog(store.tables(claim).token)

    old = catalog.load_table("sales.old")
    with old.transaction() as change:  # two snapshots in one commit; the deletion writes two rows again
        change.delete(EqualTo("id", 1))
        change.append(rows(4, 5))
    old.append(rows(6))
    with old.update_schema() as schema:
        schema.add_column("total", DoubleType())
    with old.update_schema() as schema:
        schema.rename_column("who", "whose")
    catalog.create_table("sales.new", SCHEMA).append(rows(7))
    xcoms.push(lake.scenario.hot, claim, "outlet_events", '{"table:sales.new": {"extra": {"source": "shop", "rows": 99}}}')
    assert store.report(claim, Ending(TaskState.SUCCESS)).is_stored

    found = extras(lake)
    assert found["table:sales.old"] == {
        "publication": 3, "snapshot_id": person.load_table("sales.old").metadata.current_snapshot_id, "operation": "append",
        "rows_added": 5, "rows_removed": 3, "rows": 5, "schema_change": ["added total double", "renamed who to whose"],
    }  # fmt: skip
    new = found["table:sales.new"]
    assert (new["rows_added"], new["rows_removed"], new["rows"], new["source"]) == (1, 0, 99, "shop")
    assert "schema_change" not in new
    assert found["table:sales.other"] == {}


def test_an_event_of_a_replaced_table_compares_it_with_the_one_before(lake: Lake) -> None:
    lake.person().create_table("sales.old", SCHEMA).append(rows(1, 2, 3))
    claim = lake.claim(task={"outlets": ("table:sales.old",), "notify": ("asset",)})
    access.serve_at(lake.uri)
    store = DatabaseStore(lake.scenario.settings, lake.scenario.hot, lake.scenario.follower)
    script = sql.parse(
        "create or replace table sales.old as select 1 as id; create or replace table sales.old as select id, 2.5::double as total"
        " from sales.old; insert into sales.old from sales.old",
        "duckdb",
    )
    DuckDbEngine(lake.catalog(store.tables(claim).token)).run(script, {}, 10)
    assert store.report(claim, Ending(TaskState.SUCCESS)).is_stored

    extra = extras(lake)["table:sales.old"]
    assert (extra["rows_added"], extra["rows_removed"], extra["rows"]) == (2, 3, 2)
    assert extra["schema_change"] == ["added total double", "removed who", "changed id from long to int"]


def test_rows_of_a_branch_count_when_the_table_has_them(lake: Lake) -> None:
    table = lake.person().create_table("sales.old", SCHEMA)
    table.append(rows(1))
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "audit").commit()

    def added(write: Callable[[Table], object]) -> tuple[int, int]:
        claim = lake.claim(f"d{len(lake.requests)}", task={"outlets": ("table:sales.old",), "notify": ("asset",)})
        access.serve_at(lake.uri)
        store = DatabaseStore(lake.scenario.settings, lake.scenario.hot, lake.scenario.follower)
        write(lake.catalog(store.tables(claim).token).load_table("sales.old"))
        assert store.report(claim, Ending(TaskState.SUCCESS)).is_stored
        extra = extras(lake)["table:sales.old"]
        return extra.get("rows_added", 0), extra["rows"]

    assert added(lambda one: one.append(rows(2, 3), branch="audit")) == (0, 1)
    audited = lake.person().load_table("sales.old").metadata.refs["audit"].snapshot_id
    assert added(lambda one: one.manage_snapshots().set_current_snapshot(audited).commit()) == (2, 3)
