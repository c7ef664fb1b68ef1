"""Files that a killed process left and no pointer knows are deleted, and no others."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from support.tables import SCHEMA, Lake, ids, rows
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.catalog import gc
from scheduler.process import fault_points
from scheduler.services.prune import Prune
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Ending

FIELDS = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}


def folder(lake: Lake) -> Path:
    return Path(lake.tables.warehouse.url.removeprefix("file://"))


def files(lake: Lake) -> set[str]:
    return {str(path.relative_to(folder(lake))) for path in folder(lake).rglob("*") if path.is_file()}


def collect(lake: Lake, older_s: float = 0) -> gc.Collected:
    return gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=older_s)


def post(lake: Lake, path: str, body: Any, token: str) -> requests.Response:
    return requests.post(f"{lake.uri}/v1/{path}", json=body, headers={"Authorization": f"Bearer {token}"}, timeout=10)


def stray(table: Any, name: str, age_s: float = 0) -> Path:
    """A data file that an engine wrote, and no commit names."""
    path = Path(table.location().removeprefix("file://"), "data", name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"rows")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_what_a_killed_commit_a_staged_table_and_an_engine_left_is_deleted(lake: Lake) -> None:
    scenario = lake.scenario
    kept = lake.person().create_table("sales.kept", SCHEMA)
    kept.append(rows(1))
    collect(lake)
    before = files(lake)
    claim, catalog = lake.attempt()
    token = str(catalog.properties["token"])
    table = catalog.load_table("sales.kept")
    table.append(rows(2))
    stray(table, "written-without-a-commit.parquet")
    # The catalog is killed after it wrote the metadata of a commit and of a new table, before their pointers were stored.
    lake.tables.warehouse.write(table.metadata, table.metadata_location)
    staged = post(lake, "namespaces/sales/tables", {"name": "s", "schema": FIELDS, "stage-create": True}, token).json()
    place = Path(staged["metadata"]["location"].removeprefix("file://"), "data")
    place.mkdir(parents=True)
    (place / "one.parquet").write_bytes(b"rows")
    assert lake.tables.create(lake.tables.caller(token), "sales", {"name": "n", "schema": FIELDS})[1]  # type: ignore[arg-type]
    scenario.sql("delete from table_pending where name = 'n'")
    assert collect(lake).files == 0, "its try runs"
    scenario.follower.report(claim, Ending(TaskState.FAILED))
    assert collect(lake, older_s=86_400).files == 0, "they are not old enough"
    assert files(lake) > before
    done = collect(lake)
    assert (done.tries, done.failed, done.folders) == (1, 0, 3)
    assert files(lake) == before
    assert not place.parent.exists(), "empty folders are deleted, too"
    assert [location for (location,) in scenario.rows("select location from table_folder")] == [kept.location()]
    assert ids(lake.person().load_table("sales.kept")) == [1]


def test_a_successful_try_leaves_nothing_either(lake: Lake) -> None:
    """Its client repeated the commit, after the catalog was killed."""
    claim, catalog = lake.attempt()
    table = catalog.create_table("sales.t", SCHEMA)
    table.append(rows(1))
    lake.tables.warehouse.write(table.metadata, table.metadata_location)
    stray(table, "of-a-lost-executor.parquet")
    assert lake.scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake")).is_stored
    assert collect(lake).files == 2
    assert ids(lake.person().load_table("sales.t")) == [1]


def test_what_running_tries_have_written_and_read_stays(lake: Lake) -> None:
    scenario, person = lake.scenario, lake.person()
    table = person.create_table("sales.t", SCHEMA)
    table.append(rows(1))
    claim, catalog = lake.attempt()
    person.load_table("sales.t").overwrite(rows(2))
    old = stray(table, "old.parquet", age_s=3600)
    mine = stray(table, "mine.parquet")
    catalog.load_table("sales.t").append(rows(3))
    catalog.create_table("sales.new", SCHEMA).append(rows(4))
    assert collect(lake).files == 1
    assert not old.exists() and mine.exists()
    assert (ids(catalog.load_table("sales.t")), ids(catalog.load_table("sales.new"))) == ([1, 3], [4])
    assert ids(person.load_table("sales.t")) == [2]
    scenario.follower.report(claim, Ending(TaskState.UP_FOR_RETRY, delay_s=3600))
    for change in ("", "state = 'scheduled', try_number = try_number + 1", "state = 'queued'"):
        if change:
            scenario.sql(f"update task_instance set due_at = null, {change} where state in ('up_for_retry', 'scheduled')")
        done = collect(lake)
        assert (done.tries, done.files) == (0, 0), f"the next try may continue with its Spark application: {change}"
    assert mine.exists()
    scenario.sql("delete from task_instance where id = %s", claim.id)
    assert collect(lake).tries == 1 and not mine.exists()


def test_the_files_of_all_versions_stay_and_those_of_a_dropped_table_go_with_the_last(lake: Lake) -> None:
    scenario, person = lake.scenario, lake.person()
    table = person.create_table("sales.t", SCHEMA)
    table.append(rows(1))
    table.overwrite(rows(2))
    with table.manage_snapshots() as snapshots:
        snapshots.create_tag(table.current_snapshot().snapshot_id, "tagged")  # type: ignore[union-attr]
    person.rename_table("sales.t", "sales.other")
    person.drop_table("sales.other")
    before = files(lake)
    assert collect(lake).files == 0 and files(lake) == before
    scenario.sql("delete from table_version")
    assert collect(lake).files == len(before)
    assert scenario.rows("select count(*) from table_folder") == [(0,)]
    assert not list(folder(lake).glob("sales/t-*"))


def test_a_table_whose_metadata_lies_elsewhere_keeps_its_files(lake: Lake) -> None:
    place = f"{lake.tables.warehouse.url}/sales/elsewhere"
    table = lake.person().create_table("sales.t", SCHEMA, properties={"write.metadata.path": place})
    table.append(rows(1))
    assert collect(lake).files == 0
    assert ids(table.refresh()) == [1]


def test_no_table_has_files_in_the_folder_of_another_one(lake: Lake) -> None:
    other = lake.person().create_table("sales.other", SCHEMA).location()
    for token in ("person-bob", str(lake.attempt()[1].properties["token"])):
        for key in ("write.data.path", "write.metadata.path"):
            for place in (other, f"{other}/data"):
                body = {"name": "t", "schema": FIELDS, "properties": {key: place}}
                assert post(lake, "namespaces/sales/tables", body, token).status_code == 403
        assert (
            post(lake, "namespaces/sales/tables", {"name": "t", "schema": FIELDS, "location": f"{other}/x"}, token).status_code
            == 403
        )
        lake.catalog(token).create_table("sales.mine", SCHEMA)
        commit = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"write.data.path": other}}]}
        assert post(lake, "namespaces/sales/tables/mine", commit, token).status_code == 403
        lake.catalog(token).drop_table("sales.mine")


def test_a_folder_rests_until_a_try_uses_it(lake: Lake) -> None:
    scenario = lake.scenario
    table = lake.person().create_table("sales.t", SCHEMA)
    table.append(rows(1))
    scenario.sql("update table_folder set used_at = used_at - interval '10 minutes'")
    assert collect(lake).folders == 1
    assert collect(lake).folders == 0
    claim, catalog = lake.attempt()
    assert collect(lake).folders == 0
    catalog.load_table("sales.t")
    assert (collect(lake).folders, collect(lake).folders) == (1, 1), "its try runs"
    scenario.follower.report(claim, Ending(TaskState.FAILED))
    left = stray(table, "late.parquet")
    assert collect(lake, older_s=0).folders == 1
    assert not left.exists()
    scenario.sql("update table_folder set used_at = used_at - interval '10 minutes'")
    assert collect(lake).folders == 0
    scenario.sql("update table_folder set swept_at = swept_at - interval '31 days', used_at = used_at - interval '31 days'")
    assert collect(lake).folders == 1, "nobody knows what a process does that was lost long ago"


def test_a_sweep_that_stops_at_any_file_continues(lake: Lake, tmp_path: Path) -> None:
    table = lake.person().create_table("sales.t", SCHEMA)
    table.append(rows(1))
    before = files(lake)
    for number in range(3):
        stray(table, f"{number}.parquet", age_s=100)
    (tmp_path / "faults").mkdir()
    fault_points.arm({"PACELINE_FAULTS": "tables.delete=raise@2", "PACELINE_FAULTS_FOLDER": str(tmp_path / "faults")}, "")
    with pytest.raises(fault_points.InjectedError):
        collect(lake)
    fault_points.arm({}, "")
    assert len(files(lake)) == len(before) + 2
    assert collect(lake).files == 2
    assert files(lake) == before


def test_a_storage_that_fails_stops_no_other_folder(lake: Lake) -> None:
    first, second = (lake.person().create_table(f"sales.t{number}", SCHEMA) for number in range(2))
    left = [stray(table, "x.parquet", age_s=100) for table in (first, second)]
    place = Path(first.location().removeprefix("file://"))
    away = place.rename(place.with_name("away"))
    place.touch()  # a file cannot be listed
    assert (collect(lake).failed, left[1].exists()) == (1, False)
    place.unlink()
    away.rename(place)
    assert (collect(lake).failed, left[0].exists()) == (0, False)


def test_a_scheduler_sweeps(lake: Lake) -> None:
    scenario = lake.scenario
    settings = scenario.settings.model_copy(update={"tables": scenario.settings.tables.model_copy(update={"keep_dead_tries": 0.0})})
    left = stray(lake.person().create_table("sales.t", SCHEMA), "x.parquet", age_s=100)
    prune = Prune(scenario.engine, settings)
    try:
        prune.run_once(datetime.now(UTC))
        eventually(lambda: not left.exists(), timeout=20)
    finally:
        prune.close()


def test_the_token_of_a_try_notes_its_use_once(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA)
    claim, catalog = lake.attempt()
    catalog.load_table("sales.t")
    catalog.load_table("sales.t")
    assert lake.tables._noted.cache_info().hits >= 1
    lake.catalog(table_tries.give_token(lake.scenario.hot.dicts, claim)).load_table("sales.t")
    assert lake.tables._noted.cache_info().misses == 1
