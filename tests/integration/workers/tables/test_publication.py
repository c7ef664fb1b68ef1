"""The report of a success publishes all tables of the try with it; no other end publishes any."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyiceberg.catalog.rest import RestCatalog
from support.run_actions import clear_
from support.tables import SCHEMA, Lake, ids, rows

from paceline.states import TaskState
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim, Deferral, Ending, NextInPlace, Refused, Reported
from scheduler.store.worker.table_tries import TablesChangedError
from workers.tables import access
from workers.task.follow import DatabaseStore

SUCCESS = Ending(TaskState.SUCCESS)
OPEN = {"paceline.rebase-appends": "true"}


def given(lake: Lake, claim: Claim) -> DatabaseStore:
    """The store of a pool process that has given the try its access, and the catalog of the try."""
    access.serve_at(lake.uri)
    store = DatabaseStore(lake.scenario.settings, lake.scenario.hot, lake.scenario.follower)
    store.tables(claim)
    return store


def catalog_of(lake: Lake, store: DatabaseStore, claim: Claim) -> RestCatalog:
    return lake.catalog(store.tables(claim).token)


def number(lake: Lake) -> int:
    return int(lake.scenario.rows("select number from table_publication")[0][0])


def test_the_success_of_a_try_publishes_its_tables_together(lake: Lake) -> None:
    person = lake.person()
    person.create_table("sales.old", SCHEMA).append(rows(1))
    person.create_table("sales.gone", SCHEMA)
    claim = lake.claim()
    store = given(lake, claim)
    catalog = catalog_of(lake, store, claim)
    catalog.load_table("sales.old").overwrite(rows(2))
    catalog.create_table("sales.new", SCHEMA).append(rows(3))
    catalog.drop_table("sales.gone")
    before = number(lake)
    assert store.report(claim, SUCCESS).is_stored
    assert lake.scenario.states() == {"t000": "success"}
    assert number(lake) == before + 1
    assert person.list_tables("sales") == [("sales", "new"), ("sales", "old")]
    assert (ids(person.load_table("sales.old")), ids(person.load_table("sales.new"))) == ([2], [3])
    assert lake.scenario.rows("select count(*) from table_try") == [(0,)]
    found = lake.scenario.rows(
        "select name, dag_id, task_id, try_number, metadata_location is null from table_version where publication = %s order by 1",
        before + 1,
    )
    assert found == [("gone", "d", "t000", 1, True), ("new", "d", "t000", 1, False), ("old", "d", "t000", 1, False)]


ENDS: dict[str, Callable[[Lake, DatabaseStore, Claim], object]] = {
    "failed": lambda lake, store, claim: store.report(claim, Ending(TaskState.FAILED, reason="no")),
    "up for retry": lambda lake, store, claim: store.report(claim, Ending(TaskState.UP_FOR_RETRY, delay_s=9)),
    "skipped": lambda lake, store, claim: store.report(claim, Ending(TaskState.SKIPPED)),
    "deferred": lambda lake, store, claim: store.report(
        claim, Ending(TaskState.DEFERRED, resume={}, deferral=Deferral(classpath="a.B", kwargs={}))
    ),
    "cleared while it runs": lambda lake, store, claim: (clear_(lake.scenario, run_id=claim.run_id), store.report(claim, SUCCESS)),
    "another dispatch": lambda lake, store, claim: (
        lake.scenario.sql("update task_instance set dispatch_id = gen_random_uuid()"), store.report(claim, SUCCESS)
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_no_other_end_publishes(lake: Lake, end: Callable[[Lake, DatabaseStore, Claim], object]) -> None:
    claim = lake.claim()
    store = given(lake, claim)
    catalog_of(lake, store, claim).create_table("sales.t", SCHEMA).append(rows(1))
    end(lake, store, claim)
    assert lake.person().list_tables("sales") == []
    assert number(lake) == 0


def test_a_repeated_report_publishes_once_and_is_stored(lake: Lake) -> None:
    claim = lake.claim()
    store = given(lake, claim)
    catalog_of(lake, store, claim).create_table("sales.t", SCHEMA).append(rows(1))
    assert store.report(claim, SUCCESS).is_stored
    again = store.report(claim, SUCCESS)
    assert isinstance(again, Refused) and again.is_stored
    assert number(lake) == 1


def test_a_try_that_only_read_publishes_nothing_and_takes_no_lock_of_the_counter(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA)
    claim = lake.claim()
    store = given(lake, claim)
    catalog_of(lake, store, claim).load_table("sales.t")
    with lake.scenario.engine.begin() as connection:
        connection.exec_driver_sql("select from table_publication for update")
        assert store.report(claim, SUCCESS).is_stored
    assert number(lake) == 1
    assert lake.scenario.rows("select count(*) from table_try") == [(0,)]


def test_the_next_task_sees_the_tables_also_in_place(lake: Lake) -> None:
    claim = lake.claim(length=2)
    store = given(lake, claim)
    catalog_of(lake, store, claim).create_table("sales.t", SCHEMA).append(rows(1))
    answer = store.report(claim, SUCCESS, NextInPlace("7f0c6a4e-8a51-4c7e-9a3c-111111111111"))
    assert isinstance(answer, Reported) and answer.continues is not None
    assert not access.publishes(answer.continues, lambda: False)
    assert ids(catalog_of(lake, store, answer.continues).load_table("sales.t")) == [1]


def test_a_try_that_continues_after_a_deferral_publishes_what_it_wrote_before(lake: Lake) -> None:
    scenario = lake.scenario
    claim = lake.claim()
    store = given(lake, claim)
    catalog_of(lake, store, claim).create_table("sales.t", SCHEMA).append(rows(1))
    store.report(claim, Ending(TaskState.UP_FOR_RESCHEDULE, delay_s=0, resume={"pokes": 1}))
    scenario.turn()
    (message,) = scenario.messages()
    again = scenario.claim(message)
    assert again is not None
    assert store.report(again, SUCCESS).is_stored
    assert ids(lake.person().load_table("sales.t")) == [1]


def test_a_conflict_undoes_the_report_and_names_the_other_writer(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA).append(rows(0))
    first, second = lake.claim("first"), lake.claim("second")
    for claim in (first, second):
        catalog_of(lake, given(lake, claim), claim).load_table("sales.t").overwrite(rows(1, who=claim.dag_id))
        if claim is second:
            catalog_of(lake, given(lake, claim), claim).create_table("sales.other", SCHEMA)
    # The second was given its access last: the process remembers one try at a time, so its report comes first.
    assert given(lake, second).report(second, SUCCESS).is_stored
    with pytest.raises(TablesChangedError, match=r"sales\.t was changed by second\.t000 of run .*, try 1"):
        lake.scenario.follower.report(first, replace(SUCCESS, tables="lake"))
    assert lake.scenario.rows("select state from task_instance where id = %s", first.id) == [("running",)]
    assert lake.scenario.hot.is_open
    assert lake.scenario.follower.report(first, Ending(TaskState.UP_FOR_RETRY, delay_s=0)).is_stored


def reports(lake: Lake, *dag_ids: str, write: Callable[..., object]) -> list[object]:
    """Let tries write at once, then report one after the other as the store of their processes does. The answers or errors."""
    claims = [lake.claim(dag_id) for dag_id in dag_ids]
    for claim in claims:
        write(lake.catalog(table_tries.give_token(lake.scenario.hot.dicts, claim)), claim)
    answers: list[object] = []
    for claim in claims:
        store = DatabaseStore(lake.scenario.settings, lake.scenario.hot, lake.scenario.follower)
        access.serve_at(lake.uri)
        store.tables(claim)  # as in a process of its own
        try:
            answers.append(store.report(claim, SUCCESS))
        except TablesChangedError as error:
            answers.append(error)
    return answers


def test_appends_are_moved_onto_newer_tables_if_the_author_allows_it(lake: Lake) -> None:
    person = lake.person()
    for name, properties in (("open", OPEN), ("closed", {})):
        person.create_table(f"sales.{name}", SCHEMA, properties=properties).append(rows(0))

    def append(name: str) -> Callable[..., object]:
        def write(catalog: RestCatalog, claim: Claim) -> None:
            for more in (1, 2):
                catalog.load_table(f"sales.{name}").append(rows(int(claim.dag_id[1]) * 10 + more, who=claim.dag_id))

        return write

    answers = reports(lake, "d1", "d2", "d3", write=append("open"))
    assert all(isinstance(one, Reported) for one in answers), answers
    table = person.load_table("sales.open")
    assert ids(table) == [0, 11, 12, 21, 22, 31, 32]
    snapshots = table.snapshots()
    assert [one.summary["total-records"] for one in snapshots] == [str(n) for n in range(1, 8)]
    assert [one.sequence_number for one in snapshots] == list(range(1, 8))
    assert [one.parent_snapshot_id for one in snapshots[1:]] == [one.snapshot_id for one in snapshots[:-1]]
    first, second = reports(lake, "d4", "d5", write=append("closed"))
    assert isinstance(first, Reported)
    assert "paceline.rebase-appends is not true" in str(second)
    assert ids(person.load_table("sales.closed")) == [0, 41, 42]


def test_an_overwrite_is_not_moved(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA, properties=OPEN).append(rows(0))
    first, second = reports(
        lake, "d1", "d2", write=lambda catalog, claim: catalog.load_table("sales.t").overwrite(rows(1, who=claim.dag_id))
    )
    assert isinstance(first, Reported)
    assert "the try has done more than append" in str(second)


def test_an_overwrite_is_moved_over_a_change_that_touches_no_rows(lake: Lake) -> None:
    person = lake.person()
    table = person.create_table("sales.t", SCHEMA)
    table.append(rows(0))
    claim = lake.claim()
    store = given(lake, claim)
    catalog_of(lake, store, claim).load_table("sales.t").overwrite(rows(1))
    with table.transaction() as transaction:
        transaction.set_properties({"comment": "newer"})
    assert store.report(claim, SUCCESS).is_stored
    after = person.load_table("sales.t")
    assert (ids(after), after.properties["comment"]) == ([1], "newer")


def test_two_tries_that_create_the_same_table_conflict(lake: Lake) -> None:
    first, second = reports(lake, "d1", "d2", write=lambda catalog, claim: catalog.create_table("sales.t", SCHEMA))
    assert isinstance(first, Reported)
    assert isinstance(second, TablesChangedError)


def test_a_version_has_the_columns_that_any_commit_of_the_try_has_made(lake: Lake) -> None:
    claim = lake.claim()
    store = given(lake, claim)
    catalog = catalog_of(lake, store, claim)
    for name in ("twice", "dropped"):
        table = catalog.create_table(f"sales.{name}", SCHEMA)
        table.append(rows(1))
        table.append(rows(2))
    catalog.drop_table("sales.dropped")
    assert store.report(claim, SUCCESS).is_stored
    found = lake.scenario.rows("select name, facts->'columns', facts->'added_records' from table_version order by 1")
    assert found == [("twice", {"id": "long", "who": "string"}, 2)]
