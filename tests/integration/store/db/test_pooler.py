"""PgBouncer: in session mode everything works through it; in any other mode, processes and `doctor` refuse it by name."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from support.pgbouncer import running_pgbouncer
from support.servers import PostgresServer
from support.stacks import StackFactory
from support.waiting import eventually

from paceline.exceptions import CredentialsError
from scheduler.settings import Settings
from scheduler.store.db import database

REFUSED = "database.url leads to a pooler that keeps no sessions"
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


def through(settings: Settings, folder: Path) -> Settings:
    """These settings, with the database behind the pooler in this folder."""
    url = settings.database_url.partition("?host=")[0] + f"?host={folder}"
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})


@pytest.fixture(params=["transaction", "statement"])
def mode(request: pytest.FixtureRequest) -> str:
    """A mode in which PgBouncer keeps no sessions."""
    return str(request.param)


def test_a_dag_runs_through_sessions(settings: Settings, postgres_server: PostgresServer, short_folder: Path) -> None:
    with running_pgbouncer(postgres_server, short_folder / "p", "session") as folder:
        pooled = through(settings, folder)
        with StackFactory(pooled) as stacks:
            stack = stacks({"pooled.py": DAG}, schedulers=2, workers=[("default", 2)])
            eventually(lambda: stack.json("dags", "list"))
            run = stack.json("dags", "trigger", "pooled", "--wait", "--timeout", "60")
            assert run["state"] == "success"
            findings = {one["check"]: one for one in stack.json("doctor")["checks"]}
            assert findings["database"]["ok"]


def test_sessions_have_every_setting(settings: Settings, postgres_server: PostgresServer, short_folder: Path) -> None:
    with running_pgbouncer(postgres_server, short_folder / "p", "session") as folder:
        straight, pooled = [database.create(one, by_index=True, actor="a") for one in (settings, through(settings, folder))]
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
    with running_pgbouncer(postgres_server, short_folder / "p", mode) as folder:
        engine = database.create(through(settings, folder))
        with pytest.raises(CredentialsError, match=REFUSED) as refused:
            database.wait(engine, print)
        engine.dispose()
    assert "pool_mode=session" in str(refused.value)


def test_doctor_and_processes_name_the_pooler(settings: Settings, postgres_server: PostgresServer, short_folder: Path) -> None:
    with (
        running_pgbouncer(postgres_server, short_folder / "p", "transaction") as folder,
        StackFactory(through(settings, folder)) as stacks,
    ):
        stack = stacks(schedulers=0, workers=[])
        findings = {one["check"]: one for one in stack.json("doctor")["checks"]}
        assert not findings["database"]["ok"]
        assert REFUSED in findings["database"]["message"]
        assert "pool_mode=session" in findings["database"]["fix"]
        for command in (["scheduler"], ["worker", "-q", "default"], ["waiter"], ["runs", "list"]):
            ended = stack.cli(*command)
            assert (ended.returncode, REFUSED in ended.stderr) == (4, True), ended.stderr


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
    with running_pgbouncer(postgres_server, short_folder / "p", "transaction", size=size) as folder, busy(folder, name, 4):
        for _ in range(10):
            engine = database.create(through(settings, folder))
            with pytest.raises(CredentialsError, match=REFUSED):
                database.check(engine)
            engine.dispose()
