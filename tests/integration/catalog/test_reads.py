"""A run records what it has read, and with read_at="run_start" its tasks read one state."""

from datetime import UTC, datetime

import pytest
from pyiceberg.catalog.rest import RestCatalog
from support.scenario import Scenario, chain
from support.tables import SCHEMA, Lake, ids, rows

from paceline.states import TaskState
from scheduler.store.db.database import transact
from scheduler.store.tables import history
from scheduler.store.upkeep import retention
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim, Ending
from scheduler.store.worker.table_tries import TablesChangedError


def attempt(lake: Lake, claim: Claim) -> RestCatalog:
    return lake.catalog(table_tries.give_token(lake.scenario.hot.dicts, claim))


def succeeds(scenario: Scenario, claim: Claim) -> None:
    assert scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake")).is_stored


def following(scenario: Scenario) -> Claim:
    scenario.turn()
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None
    return claim


def test_a_run_records_what_it_has_read_and_written(lake: Lake) -> None:
    person = lake.person()
    table = person.create_table("sales.old", SCHEMA)
    table.append(rows(1))
    person.create_table("sales.empty", SCHEMA)
    claim, catalog = lake.attempt()
    person.load_table("sales.old").append(rows(9))
    for _ in range(2):
        old = catalog.load_table("sales.old")
    catalog.load_table("sales.empty")
    old.append(rows(2))
    catalog.create_table("sales.new", SCHEMA).append(rows(3))
    catalog.load_table("sales.new")
    with pytest.raises(TablesChangedError):
        succeeds(lake.scenario, claim)

    def used() -> list[tuple[object, ...]]:
        found = transact(lake.scenario.engine, history.used_by_run, "lake", claim.dag_id, claim.run_id, 10)
        return [(row["table"], row["read_publication"], row["snapshot_id"], row["written_publication"]) for row in found]

    snapshot = table.metadata.current_snapshot_id
    assert used() == [("sales.empty", 3, None, None), ("sales.old", 2, snapshot, None)]
    lake.scenario.sql("delete from table_pending where name = 'old'")
    succeeds(lake.scenario, claim)
    assert used() == [("sales.empty", 3, None, None), ("sales.new", None, None, 5), ("sales.old", 2, snapshot, None)]
    for kind in ("table_reads", "table_runs"):
        assert transact(lake.scenario.engine, retention.delete_rows, kind, datetime.now(UTC)).deleted == 0
    lake.scenario.sql("update table_read set dag_run_id = -1")
    assert transact(lake.scenario.engine, retention.delete_rows, "table_reads", datetime.now(UTC)).deleted == 2


def test_all_tasks_of_a_run_read_the_tables_as_of_its_start(lake: Lake) -> None:
    scenario, person = lake.scenario, lake.person()
    source = person.create_table("sales.source", SCHEMA)
    source.append(rows(1))
    first = lake.claim("d", 2, read_at="run_start")
    source.append(rows(2))
    catalog = attempt(lake, first)
    assert ids(catalog.load_table("sales.source")) == [1], "its first use of tables is later than the start of its run"
    catalog.create_table("sales.mine", SCHEMA).append(rows(5))
    assert person.list_tables("sales") == [("sales", "source")]
    succeeds(scenario, first)
    source.append(rows(3))
    person.load_table("sales.mine").append(rows(6))
    person.create_table("sales.later", SCHEMA)
    second = following(scenario)
    catalog = attempt(lake, second)
    assert ids(catalog.load_table("sales.source")) == [1]
    assert ids(catalog.load_table("sales.mine")) == [5], "what tasks of its run have published, and nobody else"
    assert sorted(catalog.list_tables("sales")) == [("sales", "mine"), ("sales", "source")]
    _, other = lake.attempt("other")
    assert ids(other.load_table("sales.source")) == [1, 2, 3]
    catalog.load_table("sales.source").append(rows(4))
    with pytest.raises(TablesChangedError, match=r"sales\.source was changed"):
        succeeds(scenario, second)


def test_a_running_try_sees_nothing_that_another_task_of_its_run_publishes(lake: Lake) -> None:
    scenario = lake.scenario
    claims = []
    scenario.start(chain("d", 1, read_at="run_start"))
    claims.append(scenario.claim(scenario.messages()[0]))
    assert claims[0] is not None
    catalog = attempt(lake, claims[0])
    assert catalog.list_tables("sales") == []
    lake.person().create_table("sales.t", SCHEMA)
    scenario.sql("update table_version set dag_id = %s, run_id = %s", claims[0].dag_id, claims[0].run_id)
    assert catalog.list_tables("sales") == []


def test_a_run_that_starts_again_reads_the_newer_state(lake: Lake) -> None:
    scenario = lake.scenario
    table = lake.person().create_table("sales.t", SCHEMA)
    first = lake.claim("d", read_at="run_start")
    table.append(rows(1))
    assert ids(attempt(lake, first).load_table("sales.t")) == []
    scenario.follower.report(first, Ending(TaskState.UP_FOR_RETRY, delay_s=0))
    again = following(scenario)
    assert ids(attempt(lake, again).load_table("sales.t")) == []
    scenario.sql("update dag_run set started_at = clock_timestamp()")
    assert ids(attempt(lake, again).load_table("sales.t")) == [], "a try reads one state"
    scenario.follower.report(again, Ending(TaskState.UP_FOR_RETRY, delay_s=0))
    assert ids(attempt(lake, following(scenario)).load_table("sales.t")) == [1]


def test_the_versions_that_an_open_run_reads_stay(lake: Lake) -> None:
    scenario = lake.scenario
    table = lake.person().create_table("sales.t", SCHEMA)
    claim = lake.claim("d", 2, read_at="run_start")
    attempt(lake, claim).load_table("sales.t")
    table.append(rows(1))
    scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake"))
    scenario.sql("update table_version set published_at = published_at - interval '40 days'")
    transact(scenario.engine, retention.delete_rows, "table_versions", datetime.now(UTC))
    assert ids(attempt(lake, following(scenario)).load_table("sales.t")) == []
