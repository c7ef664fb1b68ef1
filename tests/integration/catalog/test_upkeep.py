"""Rollback is one publication, and what dead tries left is deleted, with nothing else."""

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow import parquet
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.view.metadata import ViewVersion
from sqlalchemy import event
from support.scenario import chain
from support.tables import SCHEMA, Lake, ids, rows
from support.waiting import eventually

from paceline.authoring import timetable
from paceline.authoring.asset import Asset
from paceline.exceptions import ConflictError, NotFoundError
from paceline.states import TaskState
from scheduler.actions import stored
from scheduler.actions.actor import Actor
from scheduler.catalog import expire as expiry
from scheduler.catalog import gc
from scheduler.catalog.describe import describe
from scheduler.catalog.files import Warehouse
from scheduler.process import fault_points
from scheduler.services.prune import Prune
from scheduler.store.db.database import transact
from scheduler.store.tables import history
from scheduler.store.upkeep import retention
from scheduler.store.worker.claims import Ending, Refused
from workers.tables import access

VIEW = ViewVersion.model_validate(
    {"schema-id": 0, "default-namespace": ["sales"], "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}]}
)


def actor(lake: Lake) -> Actor:
    return Actor(
        settings=lake.scenario.settings, engine=lake.scenario.engine, announce=lambda *_: None, publish=lambda _: None,
        name="cli:ada", made_by="cli",
    )  # fmt: skip


def files(lake: Lake) -> set[str]:
    folder = Path(lake.tables.warehouse.url.removeprefix("file://"))
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_rollback_is_a_publication_and_undone_in_the_same_way(lake: Lake) -> None:
    person = lake.person()
    table = person.create_table("sales.t", SCHEMA)
    table.append(rows(1))
    table.append(rows(2))
    _, reader = lake.attempt()
    assert stored.roll_back_table(actor(lake), "lake", "sales.t", 2)["publication"] == 4
    assert ids(person.load_table("sales.t")) == [1]
    assert ids(reader.load_table("sales.t")) == [1, 2]
    with pytest.raises(ConflictError):
        stored.roll_back_table(actor(lake), "lake", "sales.t", 2)
    with pytest.raises(NotFoundError):
        stored.roll_back_table(actor(lake), "lake", "sales.none", 2)
    stored.roll_back_table(actor(lake), "lake", "sales.t", 3)
    assert ids(person.load_table("sales.t")) == [1, 2]
    person.load_table("sales.t").append(rows(3))
    assert ids(person.load_table("sales.t")) == [1, 2, 3]
    person.drop_table("sales.t")
    stored.roll_back_table(actor(lake), "lake", "sales.t", 6)
    assert ids(person.load_table("sales.t")) == [1, 2, 3]
    shown = transact(lake.scenario.engine, history.history, "lake", "sales", "t", 10)
    assert [row["is_dropped"] for row in shown] == [False, True, *[False] * 6]
    assert [row["published_by"] for row in shown[:2]] == ["cli:ada", "ada"]
    assert [row["added_rows"] for row in shown[:3]] == [None, None, 1], "a rollback writes no rows"
    (listed,) = transact(lake.scenario.engine, history.tables, "lake", None, 10)
    assert (listed["table"], listed["publication"], listed["total_rows"]) == ("sales.t", 8, 3)


def test_a_rollback_that_wakes_updates_the_asset_of_the_table(lake: Lake) -> None:
    table = lake.person().create_table("sales.t", SCHEMA)
    table.append(rows(1))
    table.append(rows(2))
    with pytest.raises(NotFoundError, match="asset"):
        stored.roll_back_table(actor(lake), "lake", "sales.t", 2, wakes=True)
    assert ids(table.refresh()) == [1, 2], "the rollback is undone with it"
    lake.scenario.add(chain("reader", 1, schedule=timetable.WhenUpdated(Asset.table("sales.t")).to_spec()))
    stored.roll_back_table(actor(lake), "lake", "sales.t", 2, wakes=True)
    assert ids(table.refresh()) == [1]
    assert lake.scenario.rows("select uri, extra, created_by from asset_event") == [
        ("table:sales.t", {"publication": 4, "rolled_back_to": 2}, "cli")
    ]


def test_a_try_that_wrote_a_table_conflicts_with_its_rollback(lake: Lake) -> None:
    table = lake.person().create_table("sales.t", SCHEMA, properties={"commit.retry.num-retries": "0"})
    table.append(rows(1))
    table.append(rows(2))
    stored.roll_back_table(actor(lake), "lake", "sales.t", 2)
    with pytest.raises(CommitFailedException):
        table.append(rows(3))


def test_the_files_of_a_dead_try_are_deleted_and_no_others(lake: Lake) -> None:
    scenario = lake.scenario
    person = lake.person()
    person.create_table("sales.kept", SCHEMA).append(rows(1))
    person.create_table("sales.renamed", SCHEMA).append(rows(1))
    before = files(lake)
    claim, catalog = lake.attempt()
    catalog.load_table("sales.kept").append(rows(2))
    catalog.load_table("sales.kept").overwrite(rows(3))
    catalog.create_table("sales.new", SCHEMA).append(rows(4))
    catalog.rename_table("sales.renamed", "sales.other")
    catalog.load_table("sales.other").append(rows(5))
    catalog.drop_table("sales.new")
    assert gc.collect(scenario.settings, scenario.engine, older_s=0).tries == 0
    scenario.follower.report(claim, Ending(TaskState.UP_FOR_RESCHEDULE, delay_s=0, resume={}))
    assert gc.collect(scenario.settings, scenario.engine, older_s=0).tries == 0, "it may continue"
    scenario.sql("update task_instance set state = 'failed', resume = null, due_at = null, ended_at = clock_timestamp()")
    assert gc.collect(scenario.settings, scenario.engine).tries == 0, "it is not old enough"
    done = gc.collect(scenario.settings, scenario.engine, older_s=0)
    assert (done.tries, done.failed) == (1, 0)
    assert files(lake) == before
    assert scenario.rows("select (select count(*) from table_try), (select count(*) from table_pending)") == [(0, 0)]
    assert (ids(person.load_table("sales.kept")), ids(person.load_table("sales.renamed"))) == ([1], [1])


def test_files_of_others_stay_when_a_try_that_added_them_dies_and_when_their_snapshot_expires(lake: Lake, tmp_path: Path) -> None:
    scenario, person = lake.scenario, lake.person()
    person.create_table("sales.other", SCHEMA).append(rows(7))
    (other,) = [one.file for one in person.load_table("sales.other").scan().plan_files()]
    raw = tmp_path / "raw.parquet"
    parquet.write_table(rows(1), raw)
    table = person.create_table("sales.t", SCHEMA)

    def add(table: Table) -> None:
        table.add_files([str(raw)])
        with table.transaction() as change, change.update_snapshot().fast_append() as added:
            added.append_data_file(other)

    claim, catalog = lake.attempt()
    add(catalog.create_table("sales.new", SCHEMA))
    add(catalog.load_table("sales.t"))
    scenario.follower.report(claim, Ending(TaskState.FAILED))
    assert gc.collect(scenario.settings, scenario.engine, older_s=0).tries == 1

    add(table)
    table.overwrite(rows(2))
    scenario.sql("update table_version set published_at = published_at - interval '40 days'")
    done = expiry.expire(scenario.settings, scenario.engine, "sales", "t", before=datetime.now(UTC), by="cli:ada")
    assert done.files > 0
    assert raw.exists()
    assert ids(person.load_table("sales.other")) == [7]


def test_files_that_a_publication_leaves_behind_are_deleted_and_no_others(lake: Lake) -> None:
    scenario, person = lake.scenario, lake.person()
    for name in ("a", "b"):
        person.create_table(f"sales.{name}", SCHEMA, properties={"paceline.rebase-appends": "true"}).append(rows(0))
    tries = [lake.attempt(dag_id) for dag_id in ("d1", "d2")]
    for number, (_, catalog) in enumerate(tries):
        for name in ("a", "b"):
            catalog.load_table(f"sales.{name}").append(rows(number + 1))
        catalog.create_table(f"sales.scratch{number}", SCHEMA).append(rows(9))
        catalog.drop_table(f"sales.scratch{number}")
        catalog.create_table(f"sales.again{number}", SCHEMA).append(rows(9))
        catalog.drop_table(f"sales.again{number}")
        catalog.create_table(f"sales.again{number}", SCHEMA).append(rows(8))
        catalog.create_table(f"sales.named{number}", SCHEMA).append(rows(7))
        catalog.rename_table(f"sales.named{number}", f"sales.other{number}")
    for claim, _ in tries:
        ending = Ending(TaskState.SUCCESS, tables="lake")
        assert access.repeated(
            lambda claim=claim, ending=ending: scenario.follower.report(claim, ending),
            lambda error, claim=claim: access.move(scenario.settings, scenario.hot, claim, error),
        ).is_stored
        again = scenario.follower.report(claim, ending)
        assert isinstance(again, Refused) and again.is_stored, "a repeated report publishes nothing"
    done = gc.collect(scenario.settings, scenario.engine, older_s=0)
    assert (done.tries, done.failed) == (2, 0)
    assert scenario.rows("select count(*) from table_try") == [(0,)]
    assert not scenario.rows("select 1 from table_version where facts ? 'leaves'")
    needed: set[str] = set()
    for _, name in person.list_tables("sales"):
        table = person.load_table(f"sales.{name}")
        needed |= {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            needed.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                needed.add(manifest.manifest_path)
                needed |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    assert {f"{lake.tables.warehouse.url}/{path}" for path in files(lake)} == needed
    assert {name: ids(person.load_table(f"sales.{name}")) for name in ("a", "b", "again0", "other1")} == {
        "a": [0, 1, 2], "b": [0, 1, 2], "again0": [8], "other1": [7],
    }  # fmt: skip


def test_a_collection_that_stops_at_any_file_continues(lake: Lake, tmp_path: Path) -> None:
    scenario = lake.scenario
    before = files(lake)
    claim, catalog = lake.attempt()
    catalog.create_table("sales.t", SCHEMA).append(rows(1))
    catalog.load_table("sales.t").append(rows(2))
    scenario.follower.report(claim, Ending(TaskState.FAILED))
    folder = tmp_path / "faults"
    folder.mkdir()
    stopped = 0
    while scenario.rows("select 1 from table_try"):
        Warehouse.of(scenario.settings.tables.warehouse_url, "").metadata.cache_clear()  # as in another process
        (folder / "tables.delete.count").unlink(missing_ok=True)
        plan = f"tables.delete=raise@{stopped + 2}"  # one file further each time
        fault_points.arm({"PACELINE_FAULTS": plan, "PACELINE_FAULTS_FOLDER": str(folder)}, "")
        try:
            with contextlib.suppress(fault_points.InjectedError):
                gc.collect(scenario.settings, scenario.engine, older_s=0)
        finally:
            fault_points.arm({}, "")
        stopped += 1
        assert stopped < 20
    assert stopped > 3
    assert files(lake) == before


def test_old_snapshots_expire_with_the_files_that_only_they_need(lake: Lake) -> None:
    scenario, person = lake.scenario, lake.person()
    table = person.create_table("sales.t", SCHEMA)
    table.append(rows(1))
    table.overwrite(rows(2))
    table.append(rows(3))
    claim, reader = lake.attempt()
    held = reader.load_table("sales.t")
    table.overwrite(rows(4))
    scenario.sql("update table_version set published_at = published_at - interval '40 days'")

    def expire() -> expiry.Expired:
        return expiry.expire(scenario.settings, scenario.engine, "sales", "t", before=datetime.now(UTC), by="cli:ada")

    done = expire()
    assert (done.snapshots, done.publication) == (4, 6), (
        "an overwrite is a deletion and an append; the running try reads the append before it"
    )
    assert ids(held) == [2, 3]
    assert ids(person.load_table("sales.t")) == [4]
    held.append(rows(5))
    scenario.follower.report(claim, Ending(TaskState.FAILED))
    gc.collect(scenario.settings, scenario.engine, older_s=0)
    scenario.sql("update table_version set published_at = published_at - interval '40 days'")
    assert expire().files > 0
    assert ids(person.load_table("sales.t")) == [4]
    data = [name for name in files(lake) if name.endswith(".parquet")]
    assert len(data) == 1
    assert expire() == expiry.Expired(0, 0, None)
    with pytest.raises(NotFoundError):
        expiry.expire(scenario.settings, scenario.engine, "sales", "none", before=datetime.now(UTC), by="cli:ada")
    shown = describe(scenario.settings, scenario.engine, "sales", "t")
    assert (shown["rows"], shown["columns"], len(shown["snapshots"])) == (1, {"id": "long", "who": "string"}, 1)


def test_old_versions_of_a_table_go_except_those_that_are_needed(lake: Lake) -> None:
    scenario, person = lake.scenario, lake.person()
    for name in ("kept", "gone"):
        person.create_table(f"sales.{name}", SCHEMA).append(rows(1))
    claim, reader = lake.attempt()
    for name in ("kept", "gone"):
        person.load_table(f"sales.{name}").append(rows(2))
    person.drop_table("sales.gone")
    scenario.sql("update table_version set published_at = published_at - interval '40 days'")
    person.load_table("sales.kept").append(rows(3))

    def prune() -> list[tuple[str, int]]:
        for _ in range(2):  # the drop goes after the versions before it
            transact(scenario.engine, retention.delete_rows, "table_versions", datetime.now(UTC) - timedelta(days=30))
        return scenario.rows("select name, publication from table_version order by 1, 2")

    assert prune() == [("gone", 4), ("gone", 6), ("gone", 7), ("kept", 2), ("kept", 5), ("kept", 8)]
    assert ids(reader.load_table("sales.gone")) == [1]
    scenario.follower.report(claim, Ending(TaskState.FAILED))
    scenario.sql("delete from table_try")
    assert prune() == [("kept", 5), ("kept", 8)]
    stored.roll_back_table(actor(lake), "lake", "sales.kept", 7)
    assert ids(person.load_table("sales.kept")) == [1, 2]


def test_a_scheduler_deletes_the_files_of_dead_tries(lake: Lake) -> None:
    scenario = lake.scenario
    settings = scenario.settings.model_copy(update={"tables": scenario.settings.tables.model_copy(update={"keep_dead_tries": 0.0})})
    before = files(lake)
    claim, catalog = lake.attempt()
    catalog.create_table("sales.t", SCHEMA).append(rows(1))
    scenario.follower.report(claim, Ending(TaskState.FAILED))
    assert files(lake) > before
    prune = Prune(scenario.engine, settings)
    try:
        prune.run_once(datetime.now(UTC))
        eventually(lambda: scenario.rows("select count(*) from table_try") == [(0,)], timeout=20)
    finally:
        prune.close()
    assert files(lake) == before


@pytest.mark.parametrize("appends", [1, expiry.ATTEMPTS - 1, expiry.ATTEMPTS])
def test_snapshots_of_a_table_expire_although_others_write_to_it_meanwhile(lake: Lake, appends: int) -> None:
    scenario, person = lake.scenario, lake.person()
    table = person.create_table("sales.t", SCHEMA)
    table.append(rows(0))
    table.overwrite(rows(1))
    table.overwrite(rows(2))
    left = list(range(appends))

    def faster(connection: object, cursor: object, statement: str, *_: object) -> None:
        """Append a row after the table was read, before its new metadata is published."""
        if left and "select metadata_location from table_version" in statement:
            person.load_table("sales.t").append(rows(100 + left.pop()))

    before = datetime.now(UTC)
    event.listen(scenario.engine, "before_cursor_execute", faster)
    with pytest.raises(ConflictError, match=r"sales\.t was changed") if appends == expiry.ATTEMPTS else contextlib.nullcontext():
        done = expiry.expire(scenario.settings, scenario.engine, "sales", "t", before=before, by="cli:ada")
        assert (done.snapshots, left) == (4, [])
        assert len(table.refresh().snapshots()) == 1 + appends, "what others appended, upon the last of the old ones"
    assert ids(person.load_table("sales.t")) == [2, *range(100, 100 + appends)]
    event.remove(scenario.engine, "before_cursor_execute", faster)


def test_schedulers_remove_the_snapshots_that_no_rollback_reaches(lake: Lake) -> None:
    scenario, person = lake.scenario, lake.person()
    for name, properties in (("old", {}), ("kept", {"gc.enabled": "false"}), ("new", {})):
        table = person.create_table(f"sales.{name}", SCHEMA, properties=properties)
        table.append(rows(1))
        table.overwrite(rows(2))
        table.append(rows(3))
    person.create_view("sales.v", person.load_table("sales.new").schema(), VIEW)
    scenario.sql("update table_version set published_at = published_at - interval '31 days' where name <> 'new'")

    def visited() -> int:
        return expiry.expire_due(late, scenario.engine, lambda: False)

    late = scenario.settings.model_copy(
        update={"retention": scenario.settings.retention.model_copy(update={"housekeeping_days": 1e-9})}
    )
    off = late.model_copy(update={"tables": late.tables.model_copy(update={"expire_snapshots": False})})
    assert expiry.expire_due(off, scenario.engine, lambda: False) == 0
    assert expiry.expire_due(late, scenario.engine, lambda: True) == 0, "it stops"
    scenario.sql("update table_version set published_at = clock_timestamp() + interval '1 hour' where name = 'new'")
    assert (visited(), visited()) == (3, 0)
    assert {name: len(person.load_table(f"sales.{name}").snapshots()) for name in ("old", "kept", "new")} == {
        "old": 1, "kept": 4, "new": 3,
    }  # fmt: skip
    assert ids(person.load_table("sales.old")) == [2, 3]
    assert scenario.rows("select distinct account from audit where event = 'tables.expire'") == [("scheduler",)]
    scenario.sql("update table_expiry set visited_at = visited_at - interval '2 days'")
    scenario.sql("update table_version set published_at = clock_timestamp() - interval '9 days' where name <> 'new'")
    assert visited() == 1, "a table without a new version is not visited again"
    stored.roll_back_table(actor(lake), "lake", "sales.new", 10)
    assert ids(person.load_table("sales.new")) == [1], "what a rollback reaches stays"


def test_a_scheduler_removes_old_snapshots_in_its_thread(lake: Lake) -> None:
    scenario = lake.scenario
    table = lake.person().create_table("sales.t", SCHEMA)
    table.append(rows(1))
    table.append(rows(2))
    scenario.sql("update table_version set published_at = published_at - interval '31 days'")
    settings = scenario.settings.model_copy(
        update={"retention": scenario.settings.retention.model_copy(update={"housekeeping_days": 1e-9})}
    )
    prune = Prune(scenario.engine, settings)
    try:
        prune.run_once(datetime.now(UTC))
        eventually(lambda: len(table.refresh().snapshots()) == 1, timeout=20)
    finally:
        prune.close()
