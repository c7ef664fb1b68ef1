"""PgBouncer: in session mode everything works through it; in any other mode, processes and `doctor` refuse it by name."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from support.pgbouncer import running_pgbouncer
from support.servers import PostgresServer
from support.stacks import Stack, StackFactory
from support.waiting import eventually

from paceline.exceptions import CredentialsError
from scheduler.embedded import checks
from scheduler.settings import Settings
from scheduler.store.db import database

REFUSED = "The database URL leads to a pooler that keeps no sessions"
DAG = """
from paceline import DAG, task

with DAG("pooled", schedule=None):
    @task
    def one():
        return 1

    @task
    def add(x):
        return x + 1

    add(add(one()))
"""

WAITING = """
import pathlib, time

from paceline import DAG, task

with DAG("waiting", schedule=None):
    @task
    def wait(number):
        pathlib.Path("{folder}", f"began-{{number}}").touch()
        while not pathlib.Path("{folder}", "go").exists():
            time.sleep(0.05)
        return number

    @task
    def then(number):
        return number

    then.expand(number=wait.expand(number=[1, 2, 3, 4]))
"""


def through(settings: Settings, folder: Path) -> Settings:
    """These settings, with the database behind the pooler in this folder."""
    url = settings.database_url.partition("?host=")[0] + f"?host={folder}"
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})


def ended(stack: Stack, dag: str, run: str) -> dict[str, Any] | None:
    """The run, if it has ended."""
    shown: dict[str, Any] = stack.json("runs", "show", dag, run)
    return None if shown["ended_at"] is None else shown


@pytest.fixture(params=["transaction", "statement"])
def mode(request: pytest.FixtureRequest) -> str:
    """A mode in which PgBouncer keeps no sessions."""
    return str(request.param)


def test_a_dag_runs_through_sessions(settings: Settings, postgres_server: PostgresServer, short_folder: Path) -> None:
    with running_pgbouncer(postgres_server, short_folder / "p", "session") as pooler:
        pooled = through(settings, pooler.folder)
        with StackFactory(pooled) as stacks:
            stack = stacks({"pooled.py": DAG}, schedulers=2, workers=[("default", 2)])
            eventually(lambda: stack.json("dags", "list"))
            run = stack.json("dags", "trigger", "pooled", "--wait", "--timeout", "60")
            assert run["state"] == "success"
            findings = {one["check"]: one for one in stack.json("doctor")["checks"]}
            assert findings["database"]["ok"]


def test_sessions_have_every_setting(settings: Settings, postgres_server: PostgresServer, short_folder: Path) -> None:
    with running_pgbouncer(postgres_server, short_folder / "p", "session") as pooler:
        straight, pooled = [database.create(one, by_index=True, actor="a") for one in (settings, through(settings, pooler.folder))]
        asked = "select name, setting from pg_settings where source = 'session' order by name"
        found = []
        for engine in (straight, pooled):
            with engine.connect() as connection:
                found.append(dict(connection.exec_driver_sql(asked).all()))
                assert connection.exec_driver_sql("select current_setting('paceline.actor')").scalar_one() == "a"
            engine.dispose()
        assert found[0].items() <= found[1].items()
        assert found[0]["lock_timeout"] == "30000"
        assert found[0]["enable_seqscan"] == "off"


def test_processes_refuse_a_pooler_without_sessions(
    settings: Settings, postgres_server: PostgresServer, short_folder: Path, mode: str
) -> None:
    with running_pgbouncer(postgres_server, short_folder / "p", mode) as pooler:
        engine = database.create(through(settings, pooler.folder))
        with pytest.raises(CredentialsError, match=REFUSED) as refused:
            database.wait(engine, print)
        engine.dispose()
    assert "pool_mode=session" in str(refused.value)


def test_doctor_and_processes_name_the_pooler(settings: Settings, postgres_server: PostgresServer, short_folder: Path) -> None:
    with (
        running_pgbouncer(postgres_server, short_folder / "p", "transaction") as pooler,
        StackFactory(through(settings, pooler.folder)) as stacks,
    ):
        stack = stacks(schedulers=0, workers=[])
        findings = {one["check"]: one for one in stack.json("doctor")["checks"]}
        assert not findings["database"]["ok"]
        assert REFUSED in findings["database"]["message"]
        assert "pool_mode=session" in findings["database"]["fix"]
        for command in (["scheduler"], ["worker", "-q", "default"], ["waiter"], ["runs", "list"]):
            ended = stack.cli(*command)
            assert (ended.returncode, REFUSED in ended.stderr) == (4, True), ended.stderr


def test_doctor_checks_the_url_of_workers(settings: Settings, postgres_server: PostgresServer, short_folder: Path) -> None:
    with running_pgbouncer(postgres_server, short_folder / "p", "transaction") as pooler:
        url = through(settings, pooler.folder).database_url
        of_workers = settings.model_copy(update={"worker": settings.worker.model_copy(update={"database_url": url})})
        (finding,) = checks.poolers(of_workers)
    assert finding.message.startswith(f"worker.database_url: {REFUSED}")
    # The pooler has ended: this machine need not reach it.
    assert not list(checks.poolers(of_workers))


def test_running_tasks_survive_the_end_of_the_pooler(
    settings: Settings, postgres_server: PostgresServer, short_folder: Path, tmp_path: Path
) -> None:
    with running_pgbouncer(postgres_server, short_folder / "p", "session") as pooler:
        with StackFactory(through(settings, pooler.folder)) as stacks:
            stack = stacks({"waiting.py": WAITING.format(folder=str(tmp_path))}, schedulers=1, workers=[("default", 4)])
            eventually(lambda: stack.json("dags", "list"))
            stack.json("dags", "trigger", "waiting", "--run-id", "r")
            eventually(lambda: len(list(tmp_path.glob("began-*"))) == 4)

            pooler.kill()
            (tmp_path / "go").touch()

            run = eventually(lambda: ended(stack, "waiting", "r"), timeout=120)
            assert run["state"] == "success"
            tries = {(task["task_id"], task["map_index"], task["state"], task["try_number"]) for task in run["tasks"]}
            assert tries == {(name, index, "success", 1) for name in ("wait", "then") for index in range(4)}


@contextlib.contextmanager
def busy(folder: Path, dbname: str, clients: int) -> Iterator[None]:
    """So many clients of a pooler, each with one short statement after the other."""
    stop = threading.Event()

    def ask() -> None:
        with contextlib.closing(psycopg2.connect(host=str(folder), dbname=dbname)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                while not stop.is_set():
                    cursor.execute("select 1")

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("size", [2, 20])
def test_other_clients_do_not_hide_the_mode(
    settings: Settings, postgres_server: PostgresServer, short_folder: Path, size: int
) -> None:
    name = settings.database_url.partition("?")[0].rpartition("/")[2]
    with running_pgbouncer(postgres_server, short_folder / "p", "transaction", size=size) as pooler, busy(pooler.folder, name, 4):
        for _ in range(10):
            engine = database.create(through(settings, pooler.folder))
            with pytest.raises(CredentialsError, match=REFUSED):
                database.check(engine)
            engine.dispose()
