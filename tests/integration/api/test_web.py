"""The frame around the routes (entity tags, limits, bad input, unreachable servers), and `paceline web` as a process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest
from airflow_client import client as airflow
from click.testing import CliRunner
from psycopg2 import errors
from support.bundle_parsing import BROKEN, GOOD, parse_next
from support.servers import PostgresServer
from support.waiting import eventually

from scheduler.api.call import PREFIX
from scheduler.cli import paceline
from scheduler.settings import Settings
from scheduler.store.db import database

from .conftest import PASSWORD, Web, World
from .test_bundles import deploy


def test_a_client_that_has_the_response_gets_304(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        first = http.get(f"{PREFIX}/dags")
        tag = first.headers["etag"]
        assert http.get(f"{PREFIX}/dags", headers={"If-None-Match": tag}).status_code == 304
        world.scenario.sql("update dag_schedule set is_paused = true where dag_id = 'etl'")
        assert http.get(f"{PREFIX}/dags", headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize("strips", [True, False])
def test_under_a_path_prefix(make_web: Callable[..., Web], strips: bool) -> None:
    web = make_web(base_path="/tools/paceline")
    with web.http(web.account("ada", "admin")) as http:
        assert http.get(f"{'' if strips else '/tools/paceline'}{PREFIX}/me").json()["username"] == "ada"


def test_large_requests_are_refused(make_web: Callable[..., Web], world: World) -> None:
    web = make_web(max_request_bytes=10_000)
    with web.http(web.account("ada", "admin")) as http:
        body = {"conf": {"rows": 1, "text": "x" * 20_000}}
        whole = http.post(f"{PREFIX}/dags/etl/dagRuns", json=body)
        parts = http.post(f"{PREFIX}/dags/etl/dagRuns", content=(b"x" * 3000 for _ in range(4)))
        for answer in (whole, parts):
            sentence = "The body of the request has too many bytes: web.max_request_bytes allows 10,000."
            assert (answer.status_code, answer.json()["detail"]) == (413, sentence)
            assert answer.headers["x-content-type-options"] == "nosniff"


BAD_PATHS = [
    ("/dags?limit=-1", 422), ("/dags?limit=99999999999999999999", 422), ("/dags?offset=9223372036854775807", 200),
    ("/dags?limit=0", 200), ("/dags?order_by=nothing", 400), ("/dags?order_by=dag_id;drop table dag", 400),
    ("/dags/~/dagRuns?cursor=nonsense", 400), ("/dags/~/dagRuns?cursor=WyJuIixbImEiLDFdXQ", 400),
    ("/dags/~/dagRuns?logical_date_gte=yesterday", 422), ("/dags/etl/dagRuns?run_after_gte=2026-01-01T00:00:00+00:00", 200),
    ("/dags/%00", 400), ("/dags/" + "x" * 3000, 404), ("/dags/etl'--", 404), ("/dags/..%2f..", 404), ("/dags/אבג", 404),
    ("/dags?dag_id_pattern=%25%25%25", 200), ("/dags?dag_id_pattern=%5C", 200), ("/dags?tags=%00", 400),
    ("/dags/etl/dagRuns/good/taskInstances/extract/999999999999999999999999", 404),
    ("/dags/etl/dagRuns/good/taskInstances/extract/logs/1?token=nonsense", 404), ("/pools/%00", 400),
    ("/dags/etl/dagRuns/good/taskInstances?state=nonsense", 422), ("/dags?last_dag_run_state=nonsense", 422), ("/nothing", 404),
    ("/importErrors/99999999999999999999", 422), ("/dags?" + "&order_by=dag_id" * 11, 400),
    ("/dags/etl/dagRuns?consuming_asset_pattern=~", 200),
    ("/eventLogs?limit=1&offset=99999999999", 200), ("/dagSources/etl?version_number=99999999999", 404),
]  # fmt: skip
BAD_BODIES = [
    b"", b"{", b"[]", b'"text"', b'{"conf": 1}', b'{"conf": {"a": NaN}}', b'{"conf": {"a": "\\u0000"}}',
    b'{"conf": {"a": "\\ud800"}}',
    b'{"note": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"dag_run_id": "../x"}', b'{"dag_run_id": "."}', b"[" * 100_000, b'{"logical_date": "9999-99-99"}', b'{"unknown": 1}',
    b'{"dag_run_id": "<script>"}', b'{"logical_date": "0001-01-01T00:00:00+14:00"}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "content", "status", "words"),
    [
        ("/dags/etl/dagRuns", b'{"conf": {"rows": NaN}}', 400, "has a number that JSON lacks, such as NaN or Infinity"),
        ("/dags/etl/dagRuns", b'{"conf": {"rows": 1e400}}', 400, "has a number that JSON lacks, such as NaN or Infinity"),
        ("/dags/etl/dagRuns", b'{"conf": {"a": "\xff"}}', 400, "it must be JSON in UTF-8"),
        ("/dags/etl/dagRuns", b'{"conf": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "not nested too deeply"),
        (
            "/connections",
            b'{"connection_id": "c", "conn_type": "http", "extra": "' + b"[" * 5000 + b"]" * 5000 + b'"}',
            400,
            "The extra of connection 'c' must be a JSON object, at most 100 levels deep",
        ),
        ("/pools", b'{"name": "..", "slots": 1}', 400, "A pool cannot be named '..'"),
        ("/pools", b'{"name": " ", "slots": 1}', 400, "Pool ' ' must have a name of 1 to 250 characters"),
        ("/variables", b'{"key": ".", "value": "v"}', 400, "A variable cannot be named '.'"),
    ],
)
def test_bad_input_has_a_clear_sentence(web: Web, world: World, path: str, content: bytes, status: int, words: str) -> None:
    with web.http(web.account("ada", "admin")) as http:
        answer = http.post(PREFIX + path, content=content, headers={"Content-Type": "application/json"})

    assert answer.status_code == status and words in answer.json()["detail"], answer.text


def test_a_body_without_its_content_type_names_the_header(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        for answer in (
            http.post(f"{PREFIX}/dags/etl/dagRuns", content=b'{"conf": {}}'),
            http.post(f"{PREFIX}/dags/etl/dagRuns", data={"conf": "{}"}),
        ):
            assert answer.status_code == 422 and "the header Content-Type: application/json" in answer.json()["detail"][0]["msg"]


def test_bad_input_is_an_answer(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        for path, status in BAD_PATHS:
            answer = http.get(PREFIX + path)

            assert answer.status_code == status, (path, answer.text)
            assert status < 400 or answer.json()["detail"], path
            assert "Value error" not in answer.text, path


def test_a_bad_body_is_an_answer(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        for body in BAD_BODIES:
            answer = http.post(f"{PREFIX}/dags/etl/dagRuns", content=body, headers={"Content-Type": "application/json"})

            assert 400 <= answer.status_code < 500, (body[:100], answer.text)
            assert answer.json()["detail"], body[:100]


def test_a_version_that_cannot_be_read_does_not_hide_its_runs(web: Web, world: World) -> None:
    world.scenario.sql("update dag_version set data = data - 'tasks' where dag_id = 'etl'")
    with web.http(web.account("ada", "admin")) as http:
        found = http.get(f"{PREFIX}/dags/etl/dagRuns/good/taskInstances").json()["task_instances"]
        assert {one["operator"] for one in found} == {None}
        assert http.get(f"{PREFIX}/dags/etl").status_code == 200
        assert http.get(f"{PREFIX}/dags/etl/tasks").status_code < 500


def test_a_read_only_server_is_read_and_refuses_changes(web: Web, world: World, postgres_server: PostgresServer) -> None:
    with web.http(web.account("ada", "admin")) as http:
        postgres_server.take_writes(False)
        try:
            assert http.get(f"{PREFIX}/dags").status_code == 200
            refused = http.patch(f"{PREFIX}/dags/etl", json={"is_paused": True})
            assert refused.status_code == 503 and refused.headers["retry-after"] and "PostgreSQL" in refused.json()["detail"]
        finally:
            postgres_server.take_writes(True)
        assert http.patch(f"{PREFIX}/dags/etl", json={"is_paused": True}).status_code == 200


def test_without_postgresql_each_response_reports_it(make_web: Callable[..., Web], settings: Settings) -> None:
    away = settings.model_copy(update={"database": settings.database.model_copy(update={"url": "postgresql://x@127.0.0.1:1/x"})})
    with make_web(away).http("pace_token") as http:
        assert http.get(f"{PREFIX}/dags").status_code == 503
        assert http.post("/auth/token", json={"username": "ada", "password": "x"}).status_code == 503
        found = http.get("/health")
        assert found.status_code == 503 and found.json()["parts"]["metadatabase"]["status"] == "unhealthy"


def test_health_names_the_part_that_is_missing(web: Web, world: World) -> None:
    with web.http() as http:
        assert http.get("/health").status_code == 200
        world.scenario.sql("update process set heartbeat_at = now() - interval '1 hour' where kind = 'scheduler'")
        found = http.get("/health")
        assert found.status_code == 503 and found.json()["parts"]["scheduler"]["status"] == "unhealthy"
        assert http.get(f"{PREFIX}/monitor/health").json()["scheduler"]["status"] == "unhealthy"


def test_the_openapi_document_describes_each_route(web: Web) -> None:
    with web.http(web.account("ada", "viewer")) as http:
        document: dict[str, Any] = http.get(f"{PREFIX}/openapi.json").json()
    assert len([method for path in document["paths"].values() for method in path]) > 100


def test_users_of_the_command_line(web: Web, settings: Settings) -> None:
    environment = {"PACELINE_HOME": str(settings.home), "PACELINE_DATABASE_URL": settings.database_url}

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(paceline, ["users", *arguments], env=environment)
        assert done.exit_code == 0, done.output
        return done.output.strip()

    run("create", "grace", "--tag", "nightly=operator", "--password", "long enough")
    token = run("token", "grace", "--days", "1")
    with web.http(token) as http:
        me = http.get(f"{PREFIX}/me").json()
        assert (me["username"], me["role"], me["tags"]) == ("grace", None, {"nightly": "operator"})
    run("token", "grace", "--revoke", "--yes")
    with web.http(token) as http:
        assert http.get(f"{PREFIX}/me").status_code == 401
    assert "grace" in run("list")
    run("password", "grace")
    run("delete", "grace", "--yes")
    done = CliRunner().invoke(paceline, ["users", "delete", "grace", "--yes"], env=environment)
    assert done.exit_code == 3


def test_a_redis_that_does_not_respond_delays_no_request(make_web: Callable[..., Web], settings: Settings, world: World) -> None:
    """It accepts connections and sends nothing, like a stopped process. All checks share one connection."""
    opened: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=lambda: accept(silent, opened), daemon=True).start()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        web = make_web(settings.model_copy(update={"broker": settings.broker.model_copy(update={"url": url})}))
        with web.http() as http:

            def health(_: int = 0) -> str:
                return str(http.get("/health").json()["parts"]["broker"]["status"])

            assert health() == "unhealthy"
            connected, began = len(opened), time.monotonic()
            with ThreadPoolExecutor(20) as pool:
                assert set(pool.map(health, range(60))) == {"unhealthy"}
            # A check takes two attempts, each with a connection of its own, and the next one begins a second later.
            assert len(opened) - connected <= 2 * (time.monotonic() - began) / 3 + 4
            connected = len(opened)
            assert http.get(f"{PREFIX}/monitor/health").json()["metadatabase"]["status"] == "healthy"
            assert len(opened) == connected
        with web.http(web.account("oli", "operator")) as http:
            run = {"dag_run_id": "silent"}
            assert http.post(f"{PREFIX}/dags/etl/dagRuns", json=run, timeout=8).status_code == 200, "the wakeup is given up"
    for one in opened:
        one.close()


def test_the_checks_of_redis_use_one_connection(web: Web, world: World) -> None:
    with web.http() as http:
        assert http.get("/health").status_code == 200
        before = world.scenario.broker.info("stats")["total_connections_received"]
        for _ in range(5):
            web.app.state.service.broker._used_at = None
            assert http.get("/health").status_code == 200
        assert world.scenario.broker.info("stats")["total_connections_received"] == before


def accept(server: socket.socket, opened: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        while True:
            opened.append(server.accept()[0])


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
    "update reproduction set keep = true",
    "delete from reproduction",
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
    with web.http(token) as http:
        for content in (GOOD, GOOD + b"2", BROKEN, BROKEN, GOOD):
            assert deploy(http, {"a.py": content, "b.txt": b"1"}).status_code == 200
            parse_next(world.scenario.engine)
        assert http.post(f"{PREFIX}/bundles/sales/rollback", json={"version_number": 3}).status_code == 200
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
