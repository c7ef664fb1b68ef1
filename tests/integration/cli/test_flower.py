"""`paceline flower` beside a real worker: readable names, no password on a command line, an occupied port."""

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from flower import urls
from support.processes import free_port
from support.scenario import Scenario, dag
from support.stacks import StackFactory
from support.waiting import eventually
from tornado.web import url

from scheduler.embedded import stack as stacks
from scheduler.store.upkeep import processes

from .conftest import Cli

DAG = """
from paceline import DAG
from paceline.operators import EmptyOperator, PythonOperator
with DAG("seen"):
    PythonOperator(task_id="look", python_callable=lambda: 1)
    PythonOperator(task_id="stumble", python_callable=lambda: 1 / 0)
"""


ROW = """
from paceline import DAG, chain, task
with DAG("row"):
    chain(*[task(task_id=f"t{number:03}")(lambda: None)() for number in range(100)])
"""


@pytest.fixture
def port() -> int:
    return free_port()


def get(port: int, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


def status(port: int, host: str) -> int:
    """The status of the response to a request with this host."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/api/workers", headers={"Host": f"{host}:{port}"})
        return connection.getresponse().status


def answer(port: int, method: str, path: str, *, login: str | None = None) -> int:
    """The status of a request; 0 if no process listens."""
    headers = {} if login is None else {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request(method, path, headers=headers)
            return connection.getresponse().status
    except OSError:
        return 0


def post(port: int, path: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.long
@pytest.mark.stack
def test_flower_shows_tasks_as_dag_and_task_with_their_run(stack_factory: StackFactory, port: int) -> None:
    stack = stack_factory(dags={"seen.py": DAG}, schedulers=1, workers=[("default", 1)])
    env = stack.env | {
        "PACELINE_FLOWER_PORT": str(port),
        "FLOWER_PORT": "1",
        "FLOWER_UNAUTHENTICATED_API": "true",
        "PACELINE_FLOWER_ALLOWED_HOSTS": "one.example, Flower.example",
    }
    flower = subprocess.Popen([*stacks.PACELINE, "flower"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: get(port, "/api/workers?refresh=1"), timeout=60)
        # Remote control turns events on, so Flower may miss the first runs, or see one of their tasks only when it ends.
        tasks: dict[str, Any] = {}
        for number in range(20):
            run = f"r{number}"
            eventually(lambda r=run: stack.cli("dags", "trigger", "seen", "--run-id", r, "--wait").returncode == 1, timeout=120)
            shown = (get(port, "/api/tasks") or {}).items()
            tasks = {task_id: task for task_id, task in shown if task["args"] == run}
            if {task["state"] for task in tasks.values()} == {"SUCCESS", "FAILURE"}:
                break
        worker = next(iter(get(port, "/api/workers")))
        refused = {
            "pool/grow": post(port, f"/api/worker/pool/grow/{worker}?n=1"),
            "pool/shrink": post(port, f"/api/worker/pool/shrink/{worker}?n=1"),
            "pool/autoscale": post(port, f"/api/worker/pool/autoscale/{worker}?min=1&max=3"),
            "add-consumer": post(port, f"/api/worker/queue/add-consumer/{worker}?queue=other"),
            "revoke": post(port, f"/api/task/revoke/{next(iter(tasks))}"),
            "terminate": post(port, f"/api/task/revoke/{next(iter(tasks))}?terminate=true"),
        }
        hosts = {host: status(port, host) for host in ("127.0.0.1", "localhost", "[::1]", "rebound.example", "flower.example")}
        command_line = Path(f"/proc/{flower.pid}/cmdline").read_bytes()
    finally:
        flower.send_signal(signal.SIGTERM)
        output, _ = flower.communicate(timeout=20)

    assert {(task["name"], task["state"]) for task in tasks.values()} == {("seen.look", "SUCCESS"), ("seen.stumble", "FAILURE")}, (
        output
    )
    assert hosts == {"127.0.0.1": 200, "localhost": 200, "[::1]": 200, "rebound.example": 421, "flower.example": 200}
    assert {code for code, _ in refused.values()} == {403}
    instead = {
        "pool": "--concurrency",
        "add-consumer": "--queues",
        "revoke": "paceline tasks mark",
        "terminate": "paceline tasks mark",
    }
    assert all(instead[name.partition("/")[0]] in text for name, (_, text) in refused.items()), refused
    assert b"redis" not in command_line
    assert flower.returncode == 0, output


@pytest.mark.stack
def test_flower_lists_each_task_of_a_chain_that_runs_in_place(stack_factory: StackFactory, port: int) -> None:
    stack = stack_factory(
        dags={"row.py": ROW}, schedulers=1, workers=[("default", 1)], env={"PACELINE_WORKER_IN_PLACE_SECONDS": "60"}
    )
    env = stack.env | {"PACELINE_FLOWER_PORT": str(port), "FLOWER_UNAUTHENTICATED_API": "true"}
    flower = subprocess.Popen([*stacks.PACELINE, "flower"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def shown(run_id: str, timeout_s: float) -> list[dict[str, Any]]:
        eventually(lambda: stack.cli("dags", "trigger", "row", "--run-id", run_id, "--wait").returncode == 0, timeout=120)
        found: list[dict[str, Any]] = []

        def complete() -> bool:
            found[:] = [task for task in (get(port, "/api/tasks") or {}).values() if task["args"] == run_id]
            return [task["state"] for task in found] == ["SUCCESS"] * 100

        with contextlib.suppress(AssertionError):
            eventually(complete, timeout=timeout_s)
        return found

    try:
        eventually(lambda: get(port, "/api/workers?refresh=1"), timeout=60)
        # Events are turned on by remote control, so the first runs may pass unseen.
        eventually(lambda: len(shown(str(uuid.uuid4()), 3)) == 100, timeout=240)
        tasks = shown("seen", 60)
    finally:
        flower.send_signal(signal.SIGTERM)
        output, _ = flower.communicate(timeout=20)

    assert sorted(task["name"] for task in tasks) == [f"row.t{number:03}" for number in range(100)], output
    assert {task["state"] for task in tasks} == {"SUCCESS"}
    assert all(task["received"] <= task["started"] <= task["succeeded"] for task in tasks)
    assert len({task["uuid"] for task in tasks}) == 100


def test_with_a_login_only_metrics_health_and_static_files_answer_without_it(environment: dict[str, str], port: int) -> None:
    env = os.environ | environment | {"PACELINE_FLOWER_PORT": str(port), "FLOWER_BASIC_AUTH": "ann:secret"}
    patterns = [handler.regex.pattern if isinstance(handler, url) else handler[0] for handler in urls.handlers]
    paths = {pattern.removesuffix("$").replace("/static/(.*)", "/static/favicon.ico") for pattern in patterns}
    paths = {path.replace("(.+)", "x").replace("(.*)", "x").replace("/?", "") for path in paths}
    flower = subprocess.Popen([*stacks.PACELINE, "flower"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: answer(port, "GET", "/healthcheck") == 200, timeout=60)
        statuses = {path: {method: answer(port, method, path) for method in ("GET", "POST")} for path in paths}
        known = answer(port, "GET", "/api/queues/length", login="ann:secret")
        wrong = answer(port, "GET", "/api/queues/length", login="ann:wrong")
    finally:
        flower.send_signal(signal.SIGTERM)
        flower.communicate(timeout=20)

    assert len(paths) > 25
    # 404 and 405 disclose nothing.
    answered = {path for path, codes in statuses.items() if not set(codes.values()) <= {401, 404, 405}}
    assert answered == {"/metrics", "/healthcheck", "/static/favicon.ico", "/logout"}, statuses
    assert (known, wrong) == (200, 401)


def test_a_taken_port_is_one_sentence(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = cli("flower", PACELINE_FLOWER_PORT=str(taken.getsockname()[1]))

    assert done.exit_code == 1
    assert "is taken: set PACELINE_FLOWER_PORT" in done.stderr


def test_an_address_that_is_not_ours_is_one_sentence(cli: Cli) -> None:
    done = cli("flower", PACELINE_FLOWER_ADDRESS="203.0.113.1")

    assert done.exit_code == 1
    assert "set PACELINE_FLOWER_ADDRESS" in done.stderr


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def test_the_broker_page_lists_every_queue_with_all_that_waits(
    cli: Cli, scenario: Scenario, environment: dict[str, str], port: int
) -> None:
    """Flower is there first; most tasks wait in PostgreSQL, no worker serves their queue, and nothing waits for another queue."""
    scenario.add(dag("crowd", {f"t{number}": [] for number in range(60)}, task={"queue": "nobody"}))
    env = os.environ | environment | {"PACELINE_FLOWER_PORT": str(port), "FLOWER_UNAUTHENTICATED_API": "true"}
    flower = subprocess.Popen([*stacks.PACELINE, "flower"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def queues() -> dict[str, dict[str, Any]]:
        scenario.turn()
        return {queue["name"]: queue for queue in (get(port, "/api/queues/length") or {"active_queues": []})["active_queues"]}

    try:
        eventually(lambda: get(port, "/api/queues/length"), timeout=120)
        scenario.trigger("crowd")
        eventually(lambda: queues().get("nobody", {}).get("messages") == 60, timeout=60)
        processes.register(scenario.engine, kind="worker", name="idler", host="h", pid=2, queues=["idle"], concurrency=1)
        eventually(lambda: "idle" in queues(), timeout=60)
        found, shown = queues(), page(port, "/broker")
    finally:
        flower.send_signal(signal.SIGTERM)
        output, _ = flower.communicate(timeout=20)

    prefetch_window = scenario.settings.scheduler.prefetch_window
    nobody, idle = found["nobody"], found["idle"]
    assert (nobody["redis"], nobody["postgresql"], nobody["workers"]) == (prefetch_window, 60 - prefetch_window, []), output
    assert (idle["messages"], idle["workers"]) == (0, ["idler"])
    assert "In PostgreSQL" in shown and all(f'<tr id="{name}">' in shown for name in ("idle", "nobody"))
    listed = {row["queue"]: row for row in cli.json("queues", "list")}
    assert (listed["nobody"]["waiting_in_redis"], listed["nobody"]["waiting_in_postgresql"]) == (
        prefetch_window,
        60 - prefetch_window,
    )
    assert listed["nobody"]["oldest_waiting_at"] is not None and listed["nobody"]["workers"] == []
    assert listed["idle"]["workers"] == ["idler"]
