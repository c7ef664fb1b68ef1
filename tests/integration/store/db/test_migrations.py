"""Migrations beside processes of an older version: allowed migrations let them continue, and others do no harm."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Engine
from support.future_releases import NO_WAY_BACK, FutureRelease
from support.scenario import Scenario, chain

from paceline.exceptions import SchemaError
from scheduler.settings import Settings
from scheduler.store.db import database, migrate
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes

#: The columns of the marker in schemas that checkouts before 0.2.0 made. The migrations 0007 and 0016 added some.
FORMER_SCHEMAS = {
    "0001": "version_num varchar(32)",
    "0002": "version_num varchar(32)",
    "0012": "version_num varchar(32), compatible_from text",
    "0028": "version_num varchar(32), compatible_from text, record_events boolean not null default true",
}


@pytest.fixture
def future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FutureRelease]:
    future = FutureRelease(tmp_path / "migrations", monkeypatch)
    yield future
    future.ends()


def test_processes_of_this_version_accept_a_newer_compatible_schema(scenario: Scenario, future: FutureRelease) -> None:
    run = scenario.start(chain("d", 3))
    future.begins(compatible_from=future.now)

    assert migrate.migrate(scenario.engine) == "9000"
    migrate.check(scenario.engine)

    future.ends()
    migrate.check(scenario.engine)
    assert migrate.migrate(scenario.engine) == "9000", "an older version has nothing to migrate and does no harm"
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"


def test_a_newer_schema_that_does_not_serve_this_version_is_refused(scenario: Scenario, future: FutureRelease) -> None:
    scenario.sql("update process set stopped_at = now()")
    future.begins(compatible_from=None)
    migrate.migrate(scenario.engine)
    future.ends()

    for refused in (migrate.check, migrate.migrate):
        with pytest.raises(SchemaError, match="schema 9000 was made by a newer Paceline: upgrade"):
            refused(scenario.engine)


def test_no_migration_runs_under_processes_that_it_would_break(scenario: Scenario, future: FutureRelease) -> None:
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


def test_a_migration_waits_for_no_lock_for_long(scenario: Scenario, future: FutureRelease, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_index_of_a_migration_is_built_again_if_its_build_was_interrupted(scenario: Scenario, future: FutureRelease) -> None:
    state = "select indisvalid from pg_index where indexrelid = to_regclass('of_the_future_idx')"
    future.begins(compatible_from=future.now)
    migrate.migrate(scenario.engine)
    assert scenario.rows(state) == [(True,)]
    scenario.sql("update pg_index set indisvalid = false where indexrelid = to_regclass('of_the_future_idx')")

    migrate.migrate(scenario.engine)

    assert scenario.rows(state) == [(True,)]


def test_one_step_back_keeps_every_run_and_waits_for_the_end_of_processes_that_need_the_newest_schema(
    scenario: Scenario, future: FutureRelease
) -> None:
    newest, before = future.HEAD, future.BEFORE
    ended = scenario.finish(chain("d", 3), run_id="ended")
    under_way = scenario.trigger("d", run_id="under way")
    scenario.turn()
    query = "select id, dag_run_id, task_id, state, try_number from task_instance order by id"
    rows = scenario.rows(query)
    future.begins(compatible_from=future.now)
    migrate.migrate(scenario.engine)

    scenario.sql(f"update process set schema = '{newest}'")
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


def test_a_migration_that_cannot_be_undone_is_refused_with_its_reason(scenario: Scenario, future: FutureRelease) -> None:
    scenario.sql("update process set stopped_at = now()")
    future.begins(compatible_from=future.now, downgrade=NO_WAY_BACK)
    migrate.migrate(scenario.engine)

    with pytest.raises(SchemaError, match=r"^The migration 9000 cannot be undone\. It would open doors\.$"):
        migrate.downgrade(scenario.engine)
    assert scenario.rows("select version_num from paceline_schema") == [("9000",)]


def test_the_first_schema_has_no_step_back(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = migrate.known()[-1]
    shutil.copytree(migrate.FOLDER, tmp_path / "first", ignore=shutil.ignore_patterns("__pycache__", "000[2-9]*", "00[1-9]*"))
    monkeypatch.setattr(migrate, "FOLDER", tmp_path / "first")
    scenario.sql(f"update paceline_schema set version_num = '{first}'")

    with pytest.raises(SchemaError, match=rf"^The schema {first} is the first: there is no migration to undo\.$"):
        migrate.downgrade(scenario.engine)


def test_no_migration_builds_an_index_of_an_existing_table_while_it_locks_the_table() -> None:
    """A list of indexes follows this rule, and a new table has no rows: see docs/explanation/migrations.md."""
    broken = []
    for file in sorted(Path(migrate.FOLDER, "versions").glob("[0-9]*_*.*")):
        text = file.read_text(encoding="utf-8").lower()
        tables = set(re.findall(r"create (?:unlogged )?table (?:if not exists )?(\w+)", text))
        indexed = re.findall(r"create (?:unique )?index (?:\w+ )?on (\w+)", text)
        broken += [f"{file.name}: {table}" for table in indexed if table not in tables]
    assert broken == []


def test_the_marker_of_this_version_names_an_existing_revision() -> None:
    assert migrate.compatible_from() in migrate.known()


def test_the_chain_of_revisions_equals_that_of_alembic() -> None:
    assert migrate.known() == tuple(script.revision for script in ScriptDirectory(migrate.FOLDER).walk_revisions())


def test_a_migration_that_finds_its_table_locked_keeps_those_before_it_and_continues_later(
    scenario: Scenario, future: FutureRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "ATTEMPTS", 2)
    monkeypatch.setattr(migrate, "PAUSE_S", 0.01)
    future.begins(compatible_from=future.now)
    with scenario.engine.begin() as busy:
        busy.exec_driver_sql("lock table task_instance in access share mode")

        with pytest.raises(SchemaError, match=rf"^The schema stays at {future.BEFORE}: for a minute, other statements had locked"):
            migrate.migrate(scenario.engine)

    assert scenario.rows("select version_num, compatible_from from paceline_schema") == [(future.BEFORE, future.now)]
    assert migrate.migrate(scenario.engine) == future.HEAD


@pytest.fixture
def empty(empty_database_url: str, settings: Settings) -> Iterator[Engine]:
    """A connection to a database without tables."""
    of_database = settings.database.model_copy(update={"url": empty_database_url})
    engine = database.create(settings.model_copy(update={"database": of_database}))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("revision", FORMER_SCHEMAS)
def test_a_schema_from_before_the_baseline_is_refused_with_the_way_out_and_stays_as_it_is(empty: Engine, revision: str) -> None:
    with empty.begin() as connection:
        connection.exec_driver_sql(f"create table paceline_schema ({FORMER_SCHEMAS[revision]})")
        connection.exec_driver_sql("insert into paceline_schema (version_num) values (%s)", (revision,))

    for refused in (migrate.migrate, migrate.check, migrate.downgrade):
        with pytest.raises(
            SchemaError, match=rf"schema {revision} of .* before 0\.2\.0, which cannot be upgraded: back up"
        ) as error:
            refused(empty)
        assert "run `paceline db migrate` on an empty database (for the embedded PostgreSQL: remove" in str(error.value)
    with empty.connect() as connection:
        tables = connection.exec_driver_sql(
            "select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
        )
        assert tables.scalars().all() == ["paceline_schema"]


def test_every_database_has_the_mark_of_the_baseline(scenario: Scenario) -> None:
    """Without it, no process would take it: the number of its revision alone may be that of an earlier checkout."""
    scenario.sql("alter table paceline_schema drop column baseline")
    with pytest.raises(SchemaError, match=f"schema {migrate.head()} of a Paceline before 0.2.0, which cannot be upgraded: back up"):
        migrate.check(scenario.engine)


#: What a migration may change beside tables and columns, each with the comment on it.
DEFINED = """
select 'function', p.oid::regprocedure::text, concat_ws(' ', pg_get_functiondef(p.oid), p.proacl)
  from pg_proc p where p.pronamespace = 'public'::regnamespace
union all
select 'trigger', t.tgname, pg_get_triggerdef(t.oid) from pg_trigger t where not t.tgisinternal
union all
select 'constraint', concat(c.conrelid::regclass, '.', c.conname), replace(pg_get_constraintdef(c.oid), ' NOT VALID', '')
  from pg_constraint c where c.connamespace = 'public'::regnamespace
union all
select 'index', i.indexrelid::regclass::text, concat_ws(' ', pg_get_indexdef(i.indexrelid), obj_description(i.indexrelid))
  from pg_index i join pg_class c on c.oid = i.indexrelid where c.relnamespace = 'public'::regnamespace
"""


def test_each_step_back_gives_the_definitions_of_the_schema_before(empty: Engine) -> None:
    def at(revision: str, step: Callable[..., None]) -> set[tuple[str, str, str]]:
        with empty.begin() as connection:
            step(migrate._config(connection), revision)
            return {tuple(row) for row in connection.exec_driver_sql(DEFINED)}

    first, *later = reversed(migrate.known())
    before = {first: at(first, command.upgrade)} | {revision: at(revision, command.upgrade) for revision in later}
    for revision in reversed(list(before)[:-1]):
        assert at(revision, command.downgrade) == before[revision]
    for revision in later:
        assert at(revision, command.upgrade) == before[revision]
