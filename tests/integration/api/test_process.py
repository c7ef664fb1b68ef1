"""`paceline web` as a process, and under a database role of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest
from airflow_client import client as airflow
from click.testing import CliRunner
from psycopg2 import errors
from support.servers import PostgresServer
from support.waiting import eventually

from scheduler.api.call import PREFIX
from scheduler.cli import paceline
from scheduler.settings import Settings
from scheduler.store.db import database

from .conftest import PASSWORD, World

ROLE = "web_of_a_test"
FORBIDDEN = [
    "alter table dag_run add column x int",
    "drop table xcom",
    "truncate dag_run cascade",
    "create table mine (x int)",
    "create temporary table mine (x int)",
    "insert into dag (dag_id, file, version_id) values ('x', 'x.py', 1)",
    "insert into dag_version (dag_id, number, content_hash, data) values ('x', 1, '', '{}')",
    "update dag_version set data = '{}'",
    "update dag set file = 'x.py'",
    "delete from audit",
    "update audit set account = 'another'",
    "update audit set at = now()",
    "insert into event (dag_run_id, to_state, actor) values (1, 'success', 'x')",
    "delete from event",
    "insert into process (id, kind, name, host, pid) values ('x', 'scheduler', 'x', 'x', 1)",
    "update process set stopped_at = now()",
    "update paceline_schema set record_events = false",
    "insert into worker_role (name) values ('x')",
    "select * from scheduler_role",
    "insert into web_role (name) values ('x')",
    "update import_error set message = ''",
    "update backfill set created_by = ''",
    "update task_progress set progress = '{}'",
    "insert into deferral (task_instance_id) values (1)",
    "alter role current_user superuser",
    "select * from pg_authid",
    "copy dag_run to program 'id'",
]


@pytest.fixture
def port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def running(environment: dict[str, str], port: int, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`paceline web` until the end of the block, from its first response on."""
    with (folder / "web.log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen([sys.executable, "-P", "-m", "scheduler.cli", "web"], env=environment, stderr=log, text=True)
        try:
            eventually(lambda: answers(port) or process.poll() is not None, timeout=60, message=(folder / "web.log").read_text)
            yield process
        finally:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}{PREFIX}/version").status_code == 200
    return False


def environment_of(settings: Settings, port: int, **more: str) -> dict[str, str]:
    own = {"PACELINE_HOME": str(settings.home), "PACELINE_DATABASE_URL": settings.database_url, "PACELINE_WEB_PORT": str(port),
           "PACELINE_BROKER_URL": settings.broker_url, "PACELINE_DAGS_FOLDER": str(settings.dags_folder)}  # fmt: skip
    return {**os.environ, **own, **more}


def test_the_first_start_creates_an_account_and_sigterm_lets_requests_end(
    settings: Settings, world: World, port: int, tmp_path: Path
) -> None:
    environment = environment_of(settings, port)
    with running(environment, port, tmp_path) as process:
        log = (tmp_path / "web.log").read_text()
        assert f"http://127.0.0.1:{port}" in log
        password = log.partition("with the password ")[2].partition(" - ")[0]
        token = httpx.post(f"http://127.0.0.1:{port}/auth/token", json={"username": "admin", "password": password}).json()
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        url = f"http://127.0.0.1:{port}{PREFIX}/dags/etl/dagRuns/now/wait?interval=60"
        with httpx.stream("GET", url, headers=headers) as stream:
            lines = stream.iter_lines()
            assert "running" in next(lines)
            process.send_signal(signal.SIGTERM)
            assert list(lines) == []
        assert process.wait(20) in {0, -signal.SIGTERM}
    with running(environment, port, tmp_path):
        assert "password" not in (tmp_path / "web.log").read_text()


@pytest.fixture
def web_url(postgres_server: PostgresServer, settings: Settings) -> Iterator[str]:
    """The database as a role that migrating creates for web processes; it is gone after the test."""
    url = settings.database_url.replace("postgres@", f"{ROLE}:secret@")
    environment = {
        "PACELINE_HOME": str(settings.home),
        "PACELINE_DATABASE_URL": settings.database_url,
        "PACELINE_WEB_DATABASE_URL": url,
    }
    done = CliRunner().invoke(paceline, ["db", "migrate"], env=environment)
    assert done.exit_code == 0, done.output
    yield url
    engine = database.create(settings, pool_size=1)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"drop owned by {ROLE}")
    engine.dispose()
    postgres_server.execute(f"drop role {ROLE}")


def test_everything_works_under_the_role_of_web_processes(settings: Settings, world: World, web_url: str, make_web: Any) -> None:
    own = settings.model_copy(update={"web": settings.web.model_copy(update={"database_url": web_url})})
    web = make_web(own)
    web.account("ada", "admin")
    token = httpx.post(f"{web.url}/auth/token", json={"username": "ada", "password": PASSWORD}).json()["access_token"]
    with airflow.ApiClient(airflow.Configuration(host=web.url, access_token=token)) as client:
        runs, tasks = airflow.DagRunApi(client), airflow.TaskInstanceApi(client)
        runs.trigger_dag_run("etl", airflow.TriggerDAGRunPostBody(dag_run_id="mine", note="n"))
        tasks.post_clear_task_instances("etl", airflow.ClearTaskInstancesBody(dag_run_id="good", only_failed=False, dry_run=False))
        tasks.patch_task_instance("etl", "bad", "load", airflow.PatchTaskInstanceBody(new_state=airflow.TaskInstanceState.SUCCESS))
        runs.patch_dag_run("etl", "now", airflow.DAGRunPatchBody(state=airflow.DagRunMutableStates.FAILED))
        runs.delete_dag_run("etl", "bad")
        airflow.PoolApi(client).post_pool(airflow.PoolBody(name="p", slots=1))
        airflow.PoolApi(client).delete_pool("p")
        airflow.VariableApi(client).post_variable(airflow.VariableBody(key="k", value="v"))
        airflow.ConnectionApi(client).post_connection(airflow.ConnectionBody(connection_id="c", conn_type="http"))
        airflow.DAGApi(client).patch_dag("etl", airflow.DAGPatchBody(is_paused=True))
        airflow.DAGApi(client).favorite_dag("etl")
        airflow.DAGApi(client).delete_dag("hourly")
    assert world.scenario.rows("select distinct actor from event where actor like 'api:%%'") == [("api:ada",)]
    assert {row[0] for row in world.scenario.rows("select status from audit")} <= {200, 201, 204}


def test_the_role_of_web_processes_may_do_no_more(web_url: str) -> None:
    allowed = []
    with contextlib.closing(psycopg2.connect(web_url)) as connection, connection.cursor() as cursor:
        for statement in FORBIDDEN:
            try:
                cursor.execute(statement)
            except (errors.InsufficientPrivilege, errors.ActiveSqlTransaction):
                connection.rollback()
            else:
                allowed.append(statement)
                connection.rollback()
    assert allowed == []
