"""Migrations of a filled database while statements run on it: none waits for long, and one step back keeps all rows.

They are all migrations since the baseline, and two that follow them, as the next release may have them.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import pytest
from alembic import command
from sqlalchemy import Engine
from support.future_releases import FutureRelease
from support.servers import running_postgres
from support.waiting import eventually

from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Database
from scheduler.store.db import database, migrate

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(600)]

RUNS, TASKS = 1000, 1000
#: A migration may hold a lock for this long, see docs/explanation/migrations.md.
LONGEST_S = 0.2
PAUSE_S = 0.002
FILL = (
    "set statement_timeout = 0",
    "set session_replication_role = replica",  # no triggers for events and foreign keys on each row
    "insert into dag_version (dag_id, number, content_hash, data) values ('d', 1, 'h', '{}')",
    "insert into dag (dag_id, file, version_id) select 'd', 'd.py', id from dag_version",
    f"""
    insert into dag_run (dag_id, run_id, run_type, state, version_id, logical_date, data_interval_start, data_interval_end,
                         run_after, triggered_by, queued_at, started_at, ended_at)
    select 'd', 'r' || n, 'manual', 'success', v.id, m.at, m.at, m.at, m.at, 'cli', m.at, m.at, m.at
      from dag_version v, generate_series(1, {RUNS}) n, lateral (select now() - n * interval '10 minutes' as at) m
    """,
    f"""
    insert into task_instance (dag_run_id, task_id, task_no, state, try_number, queue, pool, priority_weight, rank, dispatch_id,
                               dispatched_at, queued_by, worker, scheduled_at, queued_at, started_at, ended_at)
    select r.id, 't' || k, k, case when mod(k, 10) = 0 then 'failed' else 'success' end, 1, 'default', 'default_pool', 1, 1,
           gen_random_uuid(), r.queued_at, 's', 'w', r.queued_at, r.queued_at, r.queued_at, r.queued_at
      from dag_run r, generate_series(1, {TASKS}) k
    """,
    """
    insert into event (at, dag_run_id, task_instance_id, try_number, from_state, to_state, actor)
    select ended_at, dag_run_id, id, 1, 'running', state, 'w' from task_instance
    """,
)
#: Statements that run meanwhile, by the table that they need.
STATEMENTS = {
    "task_instance": "update task_instance set reason = 'x' where id = (select min(id) + %s from task_instance)",
    "dag_run": "update dag_run set conf = '{}' where id = (select min(id) + %s from dag_run)",
    "event": "insert into event (at, dag_run_id, actor, to_state) select now(), min(id) + %s, 'w', 'queued' from dag_run",
    "dag_version": "select count(*) from dag_version where id > %s",
    "process": "update process set heartbeat_at = now() where pid = %s",
    # As the end of a task and of its run: a migration that held one table and waited for the other would be a deadlock.
    "both": "begin; update task_instance set reason = 'y' where id = (select max(id) from task_instance);"
    " select pg_sleep(0.005); update dag_run set conf = '{}' where id = (select max(id) - %s from dag_run); commit",
}
COUNTS = "select (select count(*) from task_instance), (select count(*) from dag_run where state = 'success')"


@dataclass(frozen=True)
class Filled:
    """A filled database with the first schema."""

    url: str
    engine: Engine


@pytest.fixture
def filled(short_folder: Path) -> Iterator[Filled]:
    """On a server of its own."""
    with running_postgres(short_folder / "postgres") as server, server.new_database(migrated=False) as url:
        settings = Settings(paths=Paths(home=short_folder), database=Database(url=url))
        engine = database.create(settings)
        with engine.begin() as connection:
            command.upgrade(migrate._config(connection), migrate.known()[-1])
        with engine.begin() as connection:
            for statement in FILL:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("reset all")
        yield Filled(url, engine)
        engine.dispose()


class Work:
    """Statements that run again and again, each kind on a connection of its own, and the longest time of each kind in seconds."""

    def __init__(self, url: str) -> None:
        self.longest = dict.fromkeys(STATEMENTS, 0.0)
        self.done = dict.fromkeys(STATEMENTS, 0)
        self.errors: list[str] = []
        self._url = url
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(name,)) for name in STATEMENTS]

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def _repeat(self, name: str) -> None:
        with contextlib.closing(psycopg2.connect(self._url)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            try:
                while not self._ended.wait(PAUSE_S):
                    begun = time.monotonic()
                    cursor.execute(STATEMENTS[name], (self.done[name] % RUNS,))
                    self.longest[name] = max(self.longest[name], time.monotonic() - begun)
                    self.done[name] += 1
            except psycopg2.Error as error:
                self.errors.append(f"{name}: {error}")


def measured(filled: Filled, migration: Callable[[Engine], str]) -> tuple[str, Work, float]:
    """The revision after a migration, the work during it, and how long it took."""
    work = Work(filled.url)
    with work.going_on():
        eventually(lambda: all(work.done.values()) or work.errors)
        begun = time.monotonic()
        revision = migration(filled.engine)
        took_s = time.monotonic() - begun
    assert work.errors == []
    return revision, work, took_s


def test_no_statement_waits_long_for_a_migration_of_a_million_task_instances_and_one_step_back_keeps_them(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FutureRelease(tmp_path / "migrations", monkeypatch).begins(compatible_from=migrate.known()[-1])
    found = []
    for name, step in (("up", migrate.migrate), ("one step back", migrate.downgrade), ("up again", migrate.migrate)):
        revision, work, took_s = measured(filled, step)
        found.append((name, revision, work))
        with capsys.disabled():
            longest = ", ".join(f"{table} {seconds * 1000:.0f} ms" for table, seconds in work.longest.items())
            print(f"\n{name} to {revision} in {took_s:.1f} s; the longest statement on {longest}")
    with filled.engine.connect() as connection:
        counts = tuple(connection.exec_driver_sql(COUNTS).one())

    assert [revision for _, revision, _ in found] == [migrate.head(), migrate.known()[1], migrate.head()]
    assert counts == (RUNS * TASKS, RUNS)
    migrate.check(filled.engine)
    late = {
        f"{name}, {table}": seconds for name, _, work in found for table, seconds in work.longest.items() if seconds > LONGEST_S
    }
    assert late == {}
