"""A Spark task that is reproduced: it merges, creates, replaces and drops tables in the namespace of the reproduction."""

import pytest
from support.reproductions import DAY, store
from support.scenario import dag
from support.spark_tables import Task, jvm, lake, settings
from support.tables import Lake

from scheduler.actions import runs as actions
from scheduler.actions.actor import Actor
from scheduler.catalog import reproduction
from workers.spark.sessions.session_pool import WarmJvm

__all__ = ["jvm", "lake", "settings"]

pytestmark = [pytest.mark.spark, pytest.mark.long]
STATEMENTS = (
    "insert into sales.t values (3, 'c')",
    "merge into sales.t using (select 1 as id, 'new' as v) n on t.id = n.id when matched then update set v = n.v",
    "create table sales.sums as select count(*) as n, max(v) as v from sales.t",
    "create or replace table sales.replaced as select * from sales.t",
    "create view sales.seen as select id from sales.t",
    "drop table sales.gone",
)


def test_spark_writes_the_tables_of_a_reproduction_where_nobody_reads(lake: Lake, jvm: WarmJvm) -> None:
    scenario = lake.scenario
    first = Task(lake, jvm, "first")
    first.sql(
        "create table sales.t as select * from values (1, 'a'), (2, 'b') as r (id, v)",
        "create table sales.replaced as select 1 as id",
        "create table sales.gone as select 1 as id",
    )
    first.ends()
    store(scenario, dag("d", {"t": []}))

    def run() -> None:
        scenario.turn()
        (message,) = scenario.messages()
        claim = scenario.claim(message)
        assert claim is not None
        task = Task(lake, jvm, "d", claim)
        task.sql(*STATEMENTS)
        task.ends()
        scenario.run_to_end()

    scenario.trigger("d", run_id="one", logical_date=DAY)
    run()
    files = {path for path in (scenario.settings.home / "lake").rglob("*") if path.is_file()}
    by = Actor(settings=scenario.settings, engine=scenario.engine, announce=lambda *_: None, name="cli:ada", made_by="cli")
    made = actions.reproduce(by, "d", "one", keep=True, despite_effects=False)
    run()
    new = {path for path in (scenario.settings.home / "lake").rglob("*") if path.is_file()} - files
    assert new and all(path.is_relative_to(scenario.settings.home / "lake" / made.scratch) for path in new)
    found = reproduction.compare(scenario.settings, scenario.engine, made.original_id, made.id, namespace=made.scratch)
    assert {row["table"]: (row["is_equal"], row["reproduced_rows"]) for row in found["tables"]} == {
        "sales.t": (True, 3),
        "sales.sums": (True, 1),
        "sales.replaced": (True, 3),
        "sales.seen": (True, None),
        "sales.gone": (True, None),
    }
    assert found["inputs"] == []
