"""Migrations beside processes of an older version: within the rule they go on, outside it nobody is harmed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from support.scenario import Scenario, chain

from scheduler.exceptions import SchemaError
from scheduler.store.db import migrate
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes

MIGRATION = '''"""A migration of a version to come."""
from alembic import op
revision = "9000"
down_revision = "{head}"
branch_labels, depends_on = None, None
{compatible}

def upgrade() -> None:
    op.execute("alter table task_instance add column of_the_future text")
'''


class Future:
    """A newer version of Paceline, as far as its migrations."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.now = migrate.head()
        self._here = migrate._location()

    def begins(self, *, compatible_from: str | None) -> None:
        folder = self._folder / f"from-{compatible_from}"
        shutil.copytree(self._here, folder, ignore=shutil.ignore_patterns("__pycache__"))
        line = f'compatible_from = "{compatible_from}"' if compatible_from else ""
        (folder / "versions" / "9000_future.py").write_text(MIGRATION.format(head=self.now, compatible=line))
        self._monkeypatch.setattr(migrate, "_location", lambda: str(folder))

    def ends(self) -> None:
        self._monkeypatch.setattr(migrate, "_location", lambda: self._here)


@pytest.fixture
def future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Future]:
    made = Future(tmp_path / "migrations", monkeypatch)
    yield made
    made.ends()


def test_processes_of_this_version_go_on_with_a_newer_schema_that_serves_them(scenario: Scenario, future: Future) -> None:
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


def test_no_migration_is_made_under_processes_that_it_would_break(scenario: Scenario, future: Future) -> None:
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


def test_the_marker_of_this_version_names_a_revision_it_knows() -> None:
    assert migrate.compatible_from() in migrate.known()


def test_the_chain_of_revisions_is_the_one_that_alembic_reads() -> None:
    assert migrate.known() == tuple(script.revision for script in ScriptDirectory(migrate._location()).walk_revisions())
