"""The catalog of a worker: tasks find it, it comes back when it dies, and it ends with its worker."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
from fastapi import FastAPI
from support.scenario import Scenario, chain
from support.stacks import StackFactory
from support.tables import with_tables
from support.waiting import eventually

from scheduler.api import serve
from scheduler.settings import Settings
from scheduler.store.db import database
from workers.tables import access, process
from workers.tables.server import CatalogServer
from workers.task.follow import DatabaseStore

DAG = """
import os, signal
import psutil, pyarrow as pa
from paceline import dag, task

@dag(schedule=None)
def lake():
    @task(retries=1, retry_delay=0)
    def write(ti=None):
        catalog = ti.catalog
        catalog.create_namespace_if_not_exists("sales")
        table = catalog.create_table("sales.t", pa.schema([("n", pa.int64())]))
        table.append(pa.table({"n": [ti.try_number]}))
        if ti.try_number == 1:
            raise RuntimeError("half of it is written")
        worker = psutil.Process(os.getppid())
        (server,) = [p for p in worker.children() if "workers.tables.process" in p.cmdline()]
        assert not any(catalog.properties["token"] in part for part in server.cmdline())
        server.kill()

    @task
    def read(ti=None):
        return ti.catalog.load_table("sales.t").scan().to_arrow()["n"].to_pylist()

    write() >> read()

lake()
"""


@pytest.mark.stack
def test_a_task_uses_the_catalog_of_its_worker_also_after_that_was_killed(stack_factory: StackFactory, settings: Settings) -> None:
    home = settings.home
    stack = stack_factory(
        dags={"lake.py": DAG}, schedulers=1, workers=[("default", 2)], env={"PACELINE_TABLES_WAREHOUSE": str(home / "lake")}
    )
    eventually(lambda: stack.cli("dags", "unpause", "lake").returncode == 0)
    done = stack.cli("dags", "trigger", "lake", "--run-id", "r", "--wait")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{stack.logs()}"
    with contextlib.closing(database.connect(settings, "test")) as connection, connection.cursor() as cursor:
        cursor.execute("select value::text from xcom x join task_instance t on t.id = x.task_instance_id where task_id = 'read'")
        assert cursor.fetchall() == [("[2]",)]
        cursor.execute("select task_id, try_number from table_version")
        assert cursor.fetchall() == [("write", 2)]
    worker = psutil.Process(stack.pid("worker-1"))
    (process,) = [child for child in worker.children() if "workers.tables.process" in child.cmdline()]
    worker.kill()
    assert eventually(lambda: not process.is_running(), timeout=20)


@pytest.fixture
def server(scenario: Scenario) -> Iterator[CatalogServer]:
    served = CatalogServer(with_tables(scenario.settings), os.environ)
    served.start()
    yield served
    served.end()
    access.serve_at("")


def get(server: CatalogServer) -> int:
    return requests.get(f"{server.uri}/v1/config", headers={"Authorization": "Bearer nobody"}, timeout=30).status_code


def test_it_starts_with_the_first_connection_and_again_after_its_death(server: CatalogServer) -> None:
    assert server.pid is None
    assert get(server) == 401
    first = server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: not psutil.pid_exists(first), timeout=20, interval=0.05)
    assert get(server) == 401
    assert server.pid not in (None, first)


def test_it_starts_when_a_try_is_given_its_token(scenario: Scenario, server: CatalogServer) -> None:
    scenario.start(chain("d", 1))
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None
    store = DatabaseStore(with_tables(scenario.settings), scenario.hot, scenario.follower)

    store.tables(claim)

    # Before the task sends a request, for example while its JVM starts.
    eventually(lambda: server.pid is not None, timeout=20, interval=0.05)


def test_it_listens_on_the_loopback_interface_and_hides_its_memory(server: CatalogServer) -> None:
    assert get(server) == 401
    assert server.uri.startswith("http://127.0.0.1:")
    status = Path(f"/proc/{server.pid}/environ").stat()
    assert status.st_uid == 0, "a process whose memory is hidden belongs to root"


def test_it_ends_with_its_worker(server: CatalogServer) -> None:
    assert get(server) == 401
    process = psutil.Process(server.pid)
    server.end()
    assert eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, timeout=20, interval=0.05)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(server.uri.rpartition(":")[2])), timeout=5)


def test_a_server_closes_no_connection_that_a_client_may_use_next() -> None:
    # A task may compute for hours between two requests. nginx and load balancers keep a connection for 60 seconds.
    assert process.config(FastAPI()).timeout_keep_alive > 12 * 3600
    assert serve.config(Settings(), FastAPI()).timeout_keep_alive > 60
