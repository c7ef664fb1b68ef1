"""Compaction appears with the success of its task, and neither it nor what others write meanwhile loses or doubles a row."""

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from support.tables import SCHEMA, Lake, ids, rows

from paceline.exceptions import ConflictError, NotFoundError
from paceline.states import TaskState
from paceline.tables import compaction
from scheduler.catalog import compact as by_people
from scheduler.catalog import gc
from scheduler.store.db.database import transact
from scheduler.store.tables import history
from scheduler.store.worker.claims import Claim, Ending, Reported
from scheduler.store.worker.table_tries import TablesChangedError
from tests.integration.catalog.test_upkeep import files
from workers.tables import access

GIB = 1 << 30


def small_files(lake: Lake, number: int = 6, **properties: str) -> Table:
    """A table with this number of files; each has one row."""
    table = lake.person().create_table("sales.t", SCHEMA, properties=properties)
    for one in range(number):
        table.append(rows(one))
    return table


def data_files(table: Table) -> int:
    return len(list(table.refresh().scan().plan_files()))


def compacts(catalog: RestCatalog, most_bytes: int = GIB) -> None:
    compaction.compact(catalog.load_table("sales.t"), most_bytes)


def report(lake: Lake, claim: Claim) -> object:
    """The report of a success, as a pool process makes it; or the error of one that conflicts."""
    scenario = lake.scenario
    try:
        return access.repeated(
            lambda: scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake")),
            lambda error: access.move(scenario.settings, scenario.hot, claim, error),
        )
    except TablesChangedError as error:
        scenario.follower.report(claim, Ending(TaskState.FAILED, reason="conflict"))
        return error


def needed(lake: Lake, table: Table) -> set[str]:
    """The files of all versions of a table."""
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return {one.removeprefix(f"{lake.tables.warehouse.url}/") for one in found}


def test_a_compaction_appears_with_the_success_of_its_task_and_not_before(lake: Lake) -> None:
    table = small_files(lake)
    failing, catalog = lake.attempt("failing")
    compacts(catalog)
    assert data_files(catalog.load_table("sales.t")) == 1
    lake.scenario.follower.report(failing, Ending(TaskState.FAILED))
    claim, catalog = lake.attempt()
    compacts(catalog)
    assert data_files(table) == 6
    assert isinstance(report(lake, claim), Reported)
    assert (data_files(table), ids(table)) == (1, list(range(6)))
    shown = transact(lake.scenario.engine, history.history, "lake", "sales", "t", 1)
    assert [(one["operation"], one["dag_id"], one["total_rows"]) for one in shown] == [("replace", "d", 6)]


def test_a_compaction_keeps_what_others_append_meanwhile(lake: Lake) -> None:
    table = small_files(lake)
    claim, catalog = lake.attempt()
    compacts(catalog, 5 << 20)
    table.append(rows(6))
    lake.person().load_table("sales.t").append(rows(7, 8))
    assert isinstance(report(lake, claim), Reported)
    assert (data_files(table), ids(table)) == (4, list(range(9)))
    newest, before = table.snapshots()[-1], table.snapshots()[-2]
    assert newest.parent_snapshot_id == before.snapshot_id
    assert newest.summary is not None
    assert (newest.summary.operation.value, newest.summary["total-records"], newest.summary["total-data-files"]) == (
        "replace", "9", "4",
    )  # fmt: skip
    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0)
    assert files(lake) == needed(lake, lake.person().load_table("sales.t"))
    assert ids(table) == list(range(9))
    table.append(rows(9))
    table.delete("id == 2")
    assert ids(table) == [0, 1, 3, 4, 5, 6, 7, 8, 9]


def test_a_compaction_keeps_what_others_append_while_it_is_moved(lake: Lake) -> None:
    scenario, table = lake.scenario, small_files(lake)
    claim, catalog = lake.attempt()
    compacts(catalog)
    for number in (6, 7):
        table.append(rows(number))
        with pytest.raises(TablesChangedError) as refused:
            scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake"))
        access.move(scenario.settings, scenario.hot, claim, refused.value)
    table.append(rows(8))
    assert isinstance(report(lake, claim), Reported)
    assert (data_files(table), ids(table)) == (4, list(range(9)))


def test_an_append_that_is_moved_twice_keeps_what_came_first_between(lake: Lake) -> None:
    scenario = lake.scenario
    table = lake.person().create_table("sales.t", SCHEMA, properties={"paceline.rebase-appends": "true"})
    claim, catalog = lake.attempt()
    catalog.load_table("sales.t").append(rows(1))
    table.append(rows(2))
    with pytest.raises(TablesChangedError) as refused:
        scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake"))
    access.move(scenario.settings, scenario.hot, claim, refused.value)
    with table.transaction() as change:
        change.set_properties({"comment": "newer"})
    assert isinstance(report(lake, claim), Reported)
    assert ids(table.refresh()) == [1, 2]


def test_an_append_comes_upon_a_compaction_although_the_table_allows_no_other(lake: Lake) -> None:
    table = small_files(lake)
    appends, appending = lake.attempt("appends")
    appending.load_table("sales.t").append(rows(6))
    claim, catalog = lake.attempt()
    compacts(catalog)
    assert isinstance(report(lake, claim), Reported)
    assert isinstance(report(lake, appends), Reported)
    assert (data_files(table), ids(table)) == (2, list(range(7)))


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
def test_a_compaction_of_rows_that_another_has_overwritten_is_given_up(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    table = small_files(lake)
    claim, catalog = lake.attempt()
    compacts(catalog)
    catalog.create_table("sales.other", SCHEMA).append(rows(9))
    lake.person().load_table("sales.t").overwrite(rows(100))
    with caplog.at_level(logging.INFO, "paceline.tables"):
        assert isinstance(report(lake, claim), Reported)
    assert "The compaction of sales.t is given up" in caplog.text
    assert ids(table.refresh()) == [100]
    assert ids(lake.person().load_table("sales.other")) == [9], "the rest of the try is published"
    assert transact(lake.scenario.engine, history.history, "lake", "sales", "t", 1)[0]["operation"] == "append"
    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0)
    every = (needed(lake, lake.person().load_table(name)) for name in ("sales.t", "sales.other"))
    assert files(lake) == set().union(*every)


def test_a_compaction_of_a_table_that_was_dropped_is_given_up(lake: Lake) -> None:
    small_files(lake)
    claim, catalog = lake.attempt()
    compacts(catalog)
    lake.person().drop_table("sales.t")
    assert isinstance(report(lake, claim), Reported)
    assert lake.person().list_tables("sales") == []


def test_an_overwrite_of_what_was_compacted_conflicts_as_with_any_writer(lake: Lake) -> None:
    table = small_files(lake)
    overwrites, overwriting = lake.attempt("overwrites")
    overwriting.load_table("sales.t").overwrite(rows(100))
    claim, catalog = lake.attempt()
    compacts(catalog)
    assert isinstance(report(lake, claim), Reported)
    assert "sales.t was changed by d.t000" in str(report(lake, overwrites))
    assert ids(table) == list(range(6))


def test_a_compaction_together_with_an_append_of_the_same_try_is_not_given_up(lake: Lake) -> None:
    table = small_files(lake)
    claim, catalog = lake.attempt()
    catalog.load_table("sales.t").append(rows(6))
    compacts(catalog)
    table.append(rows(7))
    assert isinstance(report(lake, claim), TablesChangedError)
    assert ids(table) == [*range(6), 7]


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
def test_in_any_order_of_reports_no_row_is_lost_or_doubled(lake: Lake) -> None:
    table = small_files(lake, **{"paceline.rebase-appends": "true"})
    expected = set(range(6))
    choose = random.Random(20261130)
    after = 100
    for turn in range(12):
        writers: list[tuple[Claim, Callable[[set[int]], Any]]] = []
        for number in range(4):
            claim, catalog = lake.attempt(f"w{turn}_{number}")
            kind = choose.choice(["compacts", "appends", "appends", "deletes" if number == 0 else "compacts"])
            if kind == "compacts":
                compacts(catalog, choose.choice([4, 6, 999]) << 20)
                writers.append((claim, lambda seen: seen))
            elif kind == "appends":
                for one in (after, after + 1):
                    catalog.load_table("sales.t").append(rows(one))
                writers.append((claim, lambda seen, new=after: seen | {new, new + 1}))
                after += 2
            else:
                gone = choose.choice(sorted(expected))
                catalog.load_table("sales.t").delete(f"id == {gone}")
                writers.append((claim, lambda seen, gone=gone: seen - {gone}))
        choose.shuffle(writers)
        for claim, effect in writers:
            if isinstance(report(lake, claim), Reported):
                expected = set(effect(expected))
            assert ids(table.refresh()) == sorted(expected)
            snapshot = table.current_snapshot()
            assert snapshot is not None and snapshot.summary is not None
            assert snapshot.summary["total-records"] == str(len(expected))
    operations = [row["operation"] for row in transact(lake.scenario.engine, history.history, "lake", "sales", "t", 1000)]
    assert operations.count("replace") > 5
    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0)
    assert ids(table.refresh()) == sorted(expected)


def test_a_person_compacts_a_table_in_a_publication(lake: Lake) -> None:
    scenario = lake.scenario
    table = small_files(lake)
    done = by_people.compact(scenario.settings, scenario.engine, "sales", "t", most_bytes=GIB, by="cli:ada")
    assert (done.files, done.into, done.left) == (6, 1, 0)
    assert (data_files(table), ids(table)) == (1, list(range(6)))
    (shown,) = transact(scenario.engine, history.history, "lake", "sales", "t", 1)
    assert (shown["operation"], shown["published_by"]) == ("replace", "cli:ada")
    again = by_people.compact(scenario.settings, scenario.engine, "sales", "t", most_bytes=GIB, by="cli:ada")
    assert (again.files, transact(scenario.engine, history.last)) == (0, shown["publication"])
    with pytest.raises(NotFoundError, match=r"no table sales\.none"):
        by_people.compact(scenario.settings, scenario.engine, "sales", "none", most_bytes=GIB, by="cli:ada")


def test_a_person_cannot_compact_a_table_as_it_was_before_another_change(lake: Lake) -> None:
    scenario = lake.scenario
    stale = lake.tables.warehouse.metadata(small_files(lake).metadata_location)
    lake.person().load_table("sales.t").append(rows(6))
    with pytest.raises(ConflictError, match=r"sales\.t was changed meanwhile: run the command again"):
        by_people.publish(lake.tables, ("sales", "t"), stale, most_bytes=GIB, by="cli:ada")
    assert ids(lake.person().load_table("sales.t")) == list(range(7))
    assert scenario.rows("select count(*) from audit where account = 'cli:ada'") == [(0,)]
