"""`paceline doctor` on a running installation: each of its checks passes, and has a situation in which it fails."""

import ast
import contextlib
import http.server
import inspect
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import create_engine
from support.bundle_parsing import BROKEN, parse_next
from support.scenario import Scenario, dag
from support.servers import PostgresServer

from scheduler.cli import health as doctor_module  # noqa: F401  (the command has the name of its module)
from scheduler.embedded import checks
from scheduler.messaging.brokers import client
from scheduler.services.loop import SchedulerLoop
from scheduler.settings import Settings
from scheduler.store.dags import bundles
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db import pooler, roles
from scheduler.store.db.database import transact

from .conftest import Cli


def problems(cli: Cli, check: str, **env: str) -> list[dict[str, Any]]:
    report = json.loads(cli("doctor", "--json", **env).stdout)
    found = [finding for finding in report["checks"] if not finding["ok"] and finding["check"] == check]
    assert all(finding["fix"] for finding in found)
    return found


def test_a_healthy_installation_has_nothing_to_fix(cli: Cli, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, report = cli("doctor"), json.loads(cli("doctor", "--json").stdout)

    not_java = [finding for finding in report["checks"] if finding["check"] != "java"]
    assert [finding for finding in not_java if not finding["ok"]] == []
    assert {"database", "broker", "schema", "schedulers", "workers", "dags folder"} <= {f["check"] for f in not_java}
    assert "PostgreSQL" in shown.stdout
    assert shown.exit_code == (0 if report["ok"] else 1)


def test_a_schema_that_does_not_fit_names_the_command(cli: Cli, empty_database_url: str) -> None:
    cli.env["PACELINE_DATABASE_URL"] = empty_database_url

    (problem,) = problems(cli, "database")

    assert "no Paceline tables" in problem["message"]
    assert problem["fix"] == "Run `paceline db migrate`."


def test_a_broker_that_refuses_the_password_is_reported(cli: Cli, scenario: Scenario) -> None:
    broker = client(scenario.settings.broker_url)
    broker.acl_setuser("picky", enabled=True, passwords=["+right"], commands=["+@all"])
    url = cli.env["PACELINE_BROKER_URL"].replace("redis+socket://", "redis+socket://picky:wrong@")

    (problem,) = problems(cli, "broker", PACELINE_BROKER_URL=url)
    broker.acl_deluser("picky")
    broker.close()

    assert "Redis rejects the connection" in problem["message"]
    assert "wrong@" not in json.dumps(problem)


def test_a_run_that_cannot_be_decided_is_named(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="r")
    scenario.sql("update dag_version set data = '{}' where dag_id = 'pair'")
    scenario.turn()

    (problem,) = problems(cli, "runs")

    assert problem["message"].startswith("Run r of DAG pair cannot be decided: The stored DAG version")
    assert "`paceline runs clear pair 'r' --latest`" in problem["fix"]
    assert cli("doctor").exit_code == 1
    for shown in (cli("runs", "list"), cli("runs", "show", "pair", "r"), cli("tasks", "why", "pair", "r", "first")):
        assert "The stored DAG version" in shown.stdout, shown.output


MODULES: tuple[ModuleType, ...] = (checks, sys.modules["scheduler.cli.health"])
NOWHERE = {"PACELINE_DATABASE_URL": "postgresql://u:p@127.0.0.1:1/d"}
#: Situations of the environment: each with the check that fails, and a part of its message.
ENVIRONMENTS: list[tuple[dict[str, str], str, str]] = [
    ({"PACELINE_CORE_PARALLELISM": "many"}, "settings", "PARALLELISM"),
    ({"PACELINE_DAGS_FOLDER": "/nonexistent/dags"}, "dags folder", "is not a folder"),
    ({"PACELINE_HOME": "/dev/null/home"}, "home", "cannot be written"),
    # /proc has no free space.
    ({"PACELINE_HOME": "/proc/home"}, "free space", "has 0 MiB left"),
    ({"PACELINE_LOGS_URL": "nothing://bucket"}, "log copies", "does not know"),
    ({"PACELINE_LOGS_URL": "gs://bucket"}, "log copies", "cannot be used"),
    ({"PACELINE_BUNDLES_CODE_URL": "gs://bucket"}, "code", "cannot be used"),
    ({"PATH": "/nonexistent", "JAVA_HOME": "/nonexistent"}, "java", "No Java"),
    ({"PATH": "/nonexistent", "JAVA_HOME": "/nonexistent"}, "java", "Install Java"),
    (
        {name: os.environ.get(name, "") for name in ("PATH", "JAVA_HOME")}
        | {"PACELINE_TABLES_WAREHOUSE": "/tmp", "PACELINE_TABLES_SPARK_JARS": "/nonexistent/jars"},
        "spark-tables",
        "neither a jar nor a folder",
    ),
    (NOWHERE, "database", "PostgreSQL does not answer"),
    ({"PACELINE_BROKER_URL": "redis://127.0.0.1:1/0"}, "broker", "Redis does not answer"),
    ({"PACELINE_BROKER_URL": "redis://127.0.0.1:1/0,redis://127.0.0.1:2/0"}, "broker", "The broker 127.0.0.1:2 does not answer"),
]
#: Limits that no machine of a test meets.
LIMITS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = [
    (lambda patch: patch.setattr(checks, "LEAST_FREE_INODES", 2**62), "free space", "free inodes"),
    (lambda patch: patch.setattr(checks, "OLDEST_POSTGRES", 99), "database", "is too old"),
    (lambda patch: patch.setattr(checks, "OLDEST_REDIS", (99, 0)), "broker", "is too old"),
]


@pytest.fixture
def made() -> Iterator[set[tuple[str, int]]]:
    """The places in the source that reported a problem: the callers of `checks.bad`."""
    places: set[tuple[str, int]] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is checks.bad.__code__ and frame.f_back is not None:
            places.add((frame.f_back.f_code.co_filename, frame.f_back.f_lineno))

    sys.setprofile(look)
    yield places
    sys.setprofile(None)


def reports(module: ModuleType) -> Iterator[ast.Call]:
    """The calls of `bad` in a module."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) == "bad":
            yield node


@pytest.mark.parametrize("status", [200, 404])
def test_another_program_on_the_port_of_the_web_process_is_not_taken_for_it(cli: Cli, scenario: Scenario, status: int) -> None:
    with answering(status) as port:
        found = cli.doctor(PATH="/nonexistent", JAVA_HOME="/nonexistent", PACELINE_WEB_PORT=str(port))

    assert "database" in {finding["check"] for finding in found}
    assert "web" not in {finding["check"] for finding in found}


@pytest.mark.usefixtures("worker_role")
def test_every_check_fails_in_a_situation(
    cli: Cli, scenario: Scenario, made: set[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = scenario.settings.dags_folder
    folder.mkdir(parents=True, exist_ok=True)

    def failed(found: list[dict[str, Any]], check: str, message: str) -> None:
        assert all(finding["fix"] for finding in found if not finding["ok"])
        texts = [each["message"] + each["fix"] for each in found if not each["ok"] and each["check"] == check]
        assert any(message in text for text in texts), (message, found)

    def fails(check: str, message: str, **env: str) -> None:
        # Without Java, because its start takes most of the time.
        failed(cli.doctor(**{"PATH": "/nonexistent", "JAVA_HOME": "/nonexistent"} | env), check, message)

    # First, because the processes of a scenario are silent soon.
    for prepare, check, message in of_the_database(cli, scenario):
        prepare()
        failed([asdict(finding) for finding in checks.running(scenario.engine, scenario.settings)], check, message)
    for env, check, message in ENVIRONMENTS:
        fails(check, message, **env)
    for limit, check, message in LIMITS:
        with monkeypatch.context() as patch:
            limit(patch)
            fails(check, message)
    with monkeypatch.context() as patch:
        # tests/integration/store/db/test_pooler.py has a real one.
        patch.setattr(pooler, "PID", "select 0")
        patch.setattr(pooler, "MARKED", "select ''")
        of_workers = f"{scenario.settings.database_url}&options="
        fails("database", "worker.database_url: The database URL leads to", PACELINE_WORKER_DATABASE_URL=of_workers)
    with unreadable(folder):
        fails("dags folder", "cannot be read")
    (folder / "out").symlink_to(tmp_path)
    fails("dags folder", "'out' is a link that leads out of the folder")
    (folder / "out").unlink()
    fails("java", "is version 8", PATH=f"{old_java(tmp_path)}:/bin", JAVA_HOME="")
    with answering(503) as port:
        fails("web", "is shutting down", PACELINE_WEB_PORT=str(port))
    monkeypatch.setattr(checks, "WEB_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fails("web", "does not answer", PACELINE_WEB_PORT=str(silent.getsockname()[1]))
    fails("secrets", "1 variable cannot be decrypted", PACELINE_CORE_FERNET_KEY=Fernet.generate_key().decode())
    (scenario.settings.home / "fernet.key").unlink()
    fails("secrets", "There is no key")

    untested = [
        f"{module.__name__}:{call.lineno}"
        for module in MODULES
        for call in reports(module)
        if not any(file == module.__file__ and call.lineno <= line <= (call.end_lineno or 0) for file, line in made)
    ]
    assert untested == [], "these problems have no situation in this test"


def of_the_database(cli: Cli, scenario: Scenario) -> list[tuple[Callable[[], object], str, str]]:
    """Situations of a running installation, each beside those before it."""

    def differs() -> None:
        core = scenario.settings.core.model_copy(update={"parallelism": 7})
        scenario.schedulers.append(SchedulerLoop(scenario.engine, scenario.settings.model_copy(update={"core": core}), name="s0"))

    def waits(dag_id: str, **task: Any) -> None:
        scenario.add(dag(dag_id, {"a": []}, task=task))
        scenario.trigger(dag_id)
        scenario.turn()
        scenario.turn()

    def broken() -> None:
        for number in range(7):
            scenario.trigger("pair", run_id=f"r{number}")
            scenario.sql("insert into import_error (file, line, message) values (%s, 3, 'bad')", f"f{number}.py")
        scenario.sql("update dag_run set scheduling_error = 'odd', state = 'running', started_at = now() where dag_id = 'pair'")

    def refused() -> None:
        transact(scenario.engine, bundles.publish, "sales", {"a.py": BundleFile(BROKEN)}, by="ann")
        parse_next(scenario.engine)
        scenario.sql("insert into bundle (name, problem) values ('ops', 'git cannot read it.')")

    scenario.pool("small", 1)
    return [
        (differs, "settings", "core.parallelism is"),
        (lambda: None, "roles", "must not"),
        (lambda: waits("lonely", queue="nobody"), "queues", "1 task instance waits in queue 'nobody'"),
        (lambda: None, "queues", "`paceline worker -q nobody`"),
        (lambda: None, "dag files", "No worker listens to the queue 'nobody'"),
        (lambda: waits("lost", pool="nowhere"), "pools", "1 task instance (of lost at least)"),
        (lambda: None, "pools", "'nowhere', which does not exist"),
        (lambda: None, "pools", "paceline pools set 'nowhere'"),
        (lambda: waits("fat", pool="small", pool_slots=3), "pools", "needs 3 slots of pool 'small', which has 1"),
        (broken, "runs", "cannot be decided: odd"),
        (lambda: None, "runs", "2 more cannot be decided"),
        (lambda: None, "dag files", "f0.py:3: bad"),
        (lambda: None, "dag files", "2 more cannot be read"),
        (refused, "bundles", "Version 1 of bundle sales is refused: a.py:2: NameError: broken"),
        (lambda: None, "bundles", "The source of bundle ops cannot be read: git cannot read it."),
        (lambda: scenario.sql("update process set heartbeat_at = now() - interval '1 hour'"), "workers", "No worker is alive"),
        (lambda: None, "workers", "worker w on h (process 1) has sent no heartbeat"),
        (lambda: cli("variables", "set", "a", "1"), "schedulers", "has sent no heartbeat"),
        (lambda: scenario.sql("update process set stopped_at = now()"), "schedulers", "Start one: `paceline scheduler`."),
    ]


@pytest.fixture
def worker_role(scenario: Scenario, postgres_server: PostgresServer) -> Iterator[None]:
    """A role of workers that may create temporary tables."""
    name = "worker_of_doctor"
    postgres_server.execute(f"create role {name} login")
    transact(scenario.engine, roles.grant_worker, name)
    database = scenario.rows("select current_database()")[0][0]
    postgres_server.execute(f"grant temporary on database {database} to public")
    yield
    scenario.sql(f"drop owned by {name}")
    postgres_server.execute(f"drop role {name}")


def test_processes_with_the_same_name_are_distinguishable(cli: Cli, scenario: Scenario) -> None:
    scenario.sql(
        "insert into process (id, name, kind, host, pid, queues, concurrency) select 'other', name, kind,"
        " 'h2', 42, queues, concurrency"
        " from process where kind = 'scheduler'"
    )
    (finding,) = [finding for finding in cli.doctor() if finding["check"] == "schedulers"]

    assert finding["message"].startswith("2 alive: s0 (process ") and "s0 (process 42 on h2)" in finding["message"]


def test_the_disk_of_a_postgresql_on_this_machine_is_checked(cli: Cli, scenario: Scenario) -> None:
    (folder,) = scenario.rows("select current_setting('data_directory')")[0]

    assert f"on the disk of {folder} (PostgreSQL)" in " ".join(finding["message"] for finding in cli.doctor())


def test_the_disk_of_the_embedded_postgresql_is_checked_with_the_home_alone(tmp_path: Path) -> None:
    settings = Settings.load({"PACELINE_HOME": str(tmp_path)})

    assert list(checks.server_space(create_engine("postgresql+psycopg2:///"), settings)) == []
    assert "home, logs, PostgreSQL" in " ".join(finding.message for finding in checks.space(settings))


@contextlib.contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """This user cannot read the folder. As root, the user is nobody for the time being."""
    folder.chmod(0)
    if os.getuid() == 0:
        os.setresuid(65534, 0, 0)
    try:
        yield
    finally:
        if os.geteuid() == 0:
            os.setresuid(0, 0, 0)
        folder.chmod(0o755)


def old_java(folder: Path) -> Path:
    java = folder / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    return folder


@contextlib.contextmanager
def answering(status: int) -> Iterator[int]:
    """The port of a process that answers with this status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if status == 200:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b'{"status": "up"}')
            else:
                self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
