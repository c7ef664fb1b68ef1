"""Migrations beside processes of an older version: allowed migrations let them continue, and others do no harm."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from support.scenario import Scenario, chain

from paceline import Asset, PartitionedAssetTimetable
from paceline.authoring import timetable
from paceline.exceptions import SchemaError
from scheduler.store.dags import assets
from scheduler.store.db import migrate
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes

MIGRATION = '''"""A migration of a version to come."""
from alembic import op
revision = "9000"
down_revision = "{head}"
branch_labels, depends_on = None, None
{compatible}
indexes = {{"of_the_future_idx": "task_instance (of_the_future) where of_the_future is not null"}}

def upgrade() -> None:
    op.execute("alter table task_instance add column of_the_future text")
'''


class Future:
    """A newer version of Paceline, as far as its migrations."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.now = migrate.head()
        self._here = migrate.FOLDER

    def begins(self, *, compatible_from: str | None) -> None:
        folder = self._folder / f"from-{compatible_from}"
        shutil.copytree(self._here, folder, ignore=shutil.ignore_patterns("__pycache__"))
        line = f'compatible_from = "{compatible_from}"' if compatible_from else ""
        (folder / "versions" / "9000_future.py").write_text(MIGRATION.format(head=self.now, compatible=line))
        self._monkeypatch.setattr(migrate, "FOLDER", folder)

    def ends(self) -> None:
        self._monkeypatch.setattr(migrate, "FOLDER", self._here)


@pytest.fixture
def future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Future]:
    future = Future(tmp_path / "migrations", monkeypatch)
    yield future
    future.ends()


def test_processes_of_this_version_accept_a_newer_compatible_schema(scenario: Scenario, future: Future) -> None:
    scenario.add(chain("d", 3))
    run = scenario.trigger("d")
    scenario.turn()
    future.begins(compatible_from=future.now)

    assert migrate.migrate(scenario.engine) == "9000"
    migrate.check(scenario.engine)

    future.ends()
    migrate.check(scenario.engine)
    assert migrate.migrate(scenario.engine) == "9000", "an older version has nothing to migrate and does no harm"
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"


def test_a_newer_schema_that_does_not_serve_this_version_is_refused(scenario: Scenario, future: Future) -> None:
    scenario.sql("update process set stopped_at = now()")
    future.begins(compatible_from=None)
    migrate.migrate(scenario.engine)
    future.ends()

    for refused in (migrate.check, migrate.migrate):
        with pytest.raises(SchemaError, match="schema 9000 was made by a newer Paceline: upgrade"):
            refused(scenario.engine)


def test_no_migration_runs_under_processes_that_it_would_break(scenario: Scenario, future: Future) -> None:
    future.begins(compatible_from="9000")

    with pytest.raises(
        SchemaError, match=r"does not work with the older version of s0#\w+, w#\w+: stop processes older than 9000"
    ) as refused:
        migrate.migrate(scenario.engine)
    assert "migrate again" in str(refused.value)
    assert scenario.rows("select version_num from paceline_schema") == [(future.now,)]

    scenario.sql("update process set heartbeat_at = now() - interval '1 hour' where kind = 'worker'")
    transact(scenario.engine, processes.stop, scenario.schedulers[0].scheduler_id)
    assert migrate.migrate(scenario.engine) == "9000", "nobody of them is alive any more"


def test_a_migration_waits_for_no_lock_for_long(scenario: Scenario, future: Future, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr(migrate, "PAUSE_S", 0.01)
    future.begins(compatible_from=future.now)
    holder = scenario.engine.connect()
    tries: list[float] = []

    def pause(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 2:
            holder.close()

    monkeypatch.setattr("time.sleep", pause)
    holder.exec_driver_sql("select 1 from task_instance")

    assert migrate.migrate(scenario.engine) == "9000"
    assert len(tries) == 2


def test_an_index_of_a_migration_is_built_again_if_its_build_was_interrupted(scenario: Scenario, future: Future) -> None:
    state = "select indisvalid from pg_index where indexrelid = to_regclass('of_the_future_idx')"
    future.begins(compatible_from=future.now)
    migrate.migrate(scenario.engine)
    assert scenario.rows(state) == [(True,)]
    scenario.sql("update pg_index set indisvalid = false where indexrelid = to_regclass('of_the_future_idx')")

    migrate.migrate(scenario.engine)

    assert scenario.rows(state) == [(True,)]


def test_one_step_back_keeps_every_run_and_waits_for_the_end_of_processes_that_need_the_newest_schema(scenario: Scenario) -> None:
    newest, before = migrate.known()[:2]
    scenario.add(chain("d", 3))
    ended = scenario.trigger("d", run_id="ended")
    scenario.run_to_end()
    under_way = scenario.trigger("d", run_id="under way")
    scenario.turn()
    query = "select id, dag_run_id, task_id, state, try_number from task_instance order by id"
    rows = scenario.rows(query)

    with pytest.raises(SchemaError, match=rf"s0#\w+, w#\w+ need the schema {newest}: replace them by processes of the version"):
        migrate.downgrade(scenario.engine)
    assert scenario.rows("select version_num from paceline_schema") == [(newest,)]

    scenario.sql(f"update process set schema = '{before}'")
    assert migrate.downgrade(scenario.engine) == before
    assert scenario.rows("select version_num, compatible_from from paceline_schema") == [(before, migrate.compatible_from(before))]
    assert scenario.rows(query) == rows
    for refused in (migrate.check, migrate.downgrade):
        with pytest.raises(SchemaError, match=f"schema is at {before}, (?:and )?this version"):
            refused(scenario.engine)

    assert migrate.migrate(scenario.engine) == newest
    scenario.run_to_end()
    assert [scenario.run_state(run) for run in (ended, under_way)] == ["success", "success"]


def test_a_migration_that_cannot_be_undone_is_refused_with_its_reason(scenario: Scenario, future: Future) -> None:
    scenario.sql("update process set stopped_at = now()")
    future.begins(compatible_from=future.now)
    file = next(Path(migrate.FOLDER, "versions").glob("9000_*"))
    file.write_text(file.read_text() + '\ndef downgrade() -> None:\n    raise NotImplementedError("It would open doors.")\n')
    migrate.migrate(scenario.engine)

    with pytest.raises(SchemaError, match=r"^The migration 9000 cannot be undone\. It would open doors\.$"):
        migrate.downgrade(scenario.engine)
    assert scenario.rows("select version_num from paceline_schema") == [("9000",)]


def test_no_migration_builds_an_index_of_an_existing_table_while_it_locks_the_table() -> None:
    """Those up to 0018 are older than the rule, which a list of indexes follows: see docs/explanation/migrations.md."""
    broken = []
    for file in sorted(Path(migrate.FOLDER, "versions").glob("[0-9]*_*.py")):
        text = file.read_text(encoding="utf-8").lower()
        tables = set(re.findall(r"create (?:unlogged )?table (?:if not exists )?(\w+)", text))
        indexed = re.findall(r"create (?:unique )?index (?:\w+ )?on (\w+)", text)
        broken += [f"{file.name}: {table}" for table in indexed if table not in tables]
    assert [one for one in broken if one > "0019"] == ["0020_web.py: dag_version"]  # a small table, locked anyway


def test_the_marker_of_this_version_names_an_existing_revision() -> None:
    assert migrate.compatible_from() in migrate.known()


def test_the_chain_of_revisions_equals_that_of_alembic() -> None:
    assert migrate.known() == tuple(script.revision for script in ScriptDirectory(migrate.FOLDER).walk_revisions())


def test_going_back_before_partitions_keeps_runs_and_the_other_updates(scenario: Scenario) -> None:
    a = Asset("a", "s3://a")
    both = {"assets": a & Asset("b", "s3://b")}
    scenario.add(chain("each", 1, schedule=PartitionedAssetTimetable(**both).to_spec()))
    scenario.add(chain("plain", 1, schedule=timetable.WhenUpdated(both["assets"]).to_spec()))
    scenario.trigger("each", run_id="mine", partition_key="us")
    for key in ("us", "eu", None, None):
        transact(scenario.engine, assets.update, a.uri, None, "test", key)
    waiting = "select dag_id, uri, count(*) from asset_waiting group by 1, 2 order by 1, 2"
    assert scenario.rows(waiting) == [("each", a.uri, 2), ("plain", a.uri, 2)]

    with scenario.engine.begin() as connection:
        command.downgrade(migrate._config(connection), "0021")

    assert scenario.rows(waiting) == [("plain", a.uri, 2)]
    assert scenario.rows("select run_id, state from dag_run") == [("mine", "queued")]
    migrate.migrate(scenario.engine)
    assert scenario.rows("select run_id, partition_key from dag_run") == [("mine", None)]
    scenario.run_to_end()


def test_a_migration_that_finds_its_table_locked_keeps_those_before_it_and_continues_later(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "ATTEMPTS", 2)
    monkeypatch.setattr(migrate, "PAUSE_S", 0.01)
    scenario.sql("update process set stopped_at = now()")
    with scenario.engine.begin() as connection:
        command.downgrade(migrate._config(connection), "0021")
    with scenario.engine.begin() as busy:
        busy.exec_driver_sql("lock table task_instance in access share mode")

        with pytest.raises(SchemaError, match=r"^The schema stays at 0022: for a minute, other statements had locked the tables"):
            migrate.migrate(scenario.engine)

    assert scenario.rows("select version_num, compatible_from from paceline_schema") == [("0022", migrate.compatible_from("0022"))]
    assert migrate.migrate(scenario.engine) == migrate.head()
