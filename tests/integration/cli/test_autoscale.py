"""What runs `paceline` from outside: `autoscale` for the number of workers, `doctor --role` and `alive` for containers."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.scenario import Scenario, dag

from scheduler.cli import autoscale
from scheduler.deciding.worker_count import Autoscaler, Limits
from scheduler.embedded.stack import free_port
from scheduler.process.health import Health, HealthServer
from scheduler.process.pidfile import Pidfile
from scheduler.settings import Settings

from .conftest import Cli

LIMITS = Limits(minimum=0, maximum=20, concurrency=2, drain_s=300, default_service_s=55)


@pytest.fixture
def wide(scenario: Scenario) -> Scenario:
    """A run with 40 tasks in the queue `heavy`, in a pool of 64 slots, none of which has started."""
    scenario.pool("big", 64)
    scenario.start(dag("wide", {f"t{n}": [] for n in range(40)}, task={"queue": "heavy", "pool": "big"}))
    return scenario


def test_the_backlog_of_a_queue_becomes_a_number_of_workers(cli: Cli, wide: Scenario) -> None:
    # 40 tasks of 55 s within 300 s: 8 at once.
    found = cli.json("autoscale", "--queue", "heavy", "-c", "2", "--service-time", "55")

    assert {name: found[name] for name in ("queues", "workers", "waiting", "running", "startable", "service_s")} == {
        "queues": ["heavy"], "workers": 4, "waiting": 40, "running": 0, "startable": 40, "service_s": None,
    }  # fmt: skip
    assert found["arrivals_per_s"] == pytest.approx(40 / 300, rel=0.01)
    assert cli("autoscale", "--queue", "heavy", "-c", "2", "--service-time", "55").stdout == "4\n"
    assert cli("autoscale", "--queue", "heavy", "--max", "3", "-c", "1").stdout == "2\n"
    assert cli("autoscale", "--queue", "empty").stdout == "0\n"
    assert cli("autoscale", "--queue", "empty", "--min", "2").stdout == "2\n"


def test_tasks_that_wait_for_a_pool_need_no_worker(cli: Cli, scenario: Scenario) -> None:
    scenario.pool("narrow", 3)
    scenario.start(dag("d", {f"t{n}": [] for n in range(9)}, task={"queue": "q", "pool": "narrow"}))

    found = cli.json("autoscale", "--queue", "q", "-c", "1", "--service-time", "3600")

    assert (found["waiting"], found["startable"], found["workers"]) == (9, 3, 3)


def test_running_and_ended_tasks_count(wide: Scenario) -> None:
    messages = wide.messages()
    claims = [wide.claim(message) for message in messages[:10]]
    wide.sql("update task_instance set started_at = clock_timestamp() - interval '7 s' where state = 'running'")
    assert autoscale.decision(Autoscaler(LIMITS, cooldown_s=0), wide.engine, ["heavy"])["service_s"] == pytest.approx(7, abs=2)
    for claim in claims[:6]:
        assert claim is not None
        wide.sql(
            "update task_instance set state = 'success', ended_at = clock_timestamp(), worker = null,"
            " started_at = clock_timestamp() - interval '20 s' where id = %s",
            claim.id,
        )

    found = autoscale.decision(Autoscaler(LIMITS, cooldown_s=0), wide.engine, ["heavy"])

    assert (found["waiting"], found["running"]) == (30, 4)
    assert found["service_s"] == pytest.approx(20, abs=2)
    assert found["arrivals_per_s"] == pytest.approx(40 / 300, rel=0.05)


def test_tasks_of_a_worker_that_drains_need_no_other_worker(wide: Scenario) -> None:
    claims = [wide.claim(message) for message in wide.messages()[:10]]
    assert all(claims)
    autoscaler = Autoscaler(LIMITS, cooldown_s=0)
    before = autoscale.decision(autoscaler, wide.engine, ["heavy"])

    wide.sql("insert into worker_drain (process_id, asked_by) values (%s, 'a signal')", wide.worker_id)

    after = autoscale.decision(autoscaler, wide.engine, ["heavy"])
    assert (before["waiting"], before["running"]) == (30, 10)
    assert (after["waiting"], after["running"]) == (30, 0)


@pytest.fixture
def address(wide: Scenario) -> Iterator[str]:
    serving = autoscale.server(
        partial(autoscale.decision, Autoscaler(LIMITS, cooldown_s=30), wide.engine, ["heavy"]), "127.0.0.1", 0
    )
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()
    thread.join()
    serving.server_close()


def get(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_keda_reads_the_number_over_http(address: str) -> None:
    code, found = get(f"{address}/workers")

    assert (code, found["workers"], found["waiting"]) == (200, 4, 40)
    assert get(f"{address}/alive") == (200, {"alive": True})
    assert get(f"{address}/other") == (404, {"error": "There is only /workers here."})


def test_queues_of_the_same_workers_are_added_up(cli: Cli, wide: Scenario) -> None:
    wide.trigger("pair")
    wide.turn()

    found = cli.json("autoscale", "--queue", "heavy", "--queue", "default", "-c", "2", "--service-time", "55")

    assert (found["queues"], found["waiting"]) == (["heavy", "default"], 41)


def test_a_minimum_above_the_maximum_is_refused(cli: Cli) -> None:
    done = cli("autoscale", "--queue", "a", "--min", "5", "--max", "2")

    assert done.exit_code == 2
    assert "--max 2 is less than --min 5." in done.stderr


WRONG = threading.Event()


@pytest.fixture
def served(settings: Settings) -> Iterator[Pidfile]:
    """A worker of this home that is well until WRONG is set."""
    WRONG.clear()
    pidfile = Pidfile(settings.run_folder, "worker").take()
    health = Health("worker", lambda: "w#1", {"loop": lambda _: "It has not turned." if WRONG.is_set() else None})
    server = HealthServer(health, path=pidfile.socket)
    yield pidfile
    server.close()
    pidfile.leave()


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("command", [("alive",), ("doctor", "--role")])
def test_a_process_of_this_home_that_is_well_is_alive(cli: Cli, command: tuple[str, ...]) -> None:
    assert cli(*command, "worker").exit_code == 0
    nobody = cli(*command, "scheduler")
    assert (nobody.exit_code, nobody.stderr.count("\n")) == (1, 1)
    assert "No scheduler runs on this machine" in nobody.stderr

    WRONG.set()

    unwell = cli(*command, "worker")
    assert (unwell.exit_code, unwell.stderr) == (1, "Error: w#1: It has not turned.\n")


@pytest.mark.usefixtures("served")
def test_machines_read_the_parts(cli: Cli) -> None:
    WRONG.set()

    done = cli("doctor", "--role", "worker", "--json")

    part = {"loop": {"status": "unhealthy", "message": "It has not turned."}}
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "ok": False, "role": "worker",
        "processes": [{"process": "w#1", "status": "unhealthy", "message": "It has not turned.", "parts": part}],
    }  # fmt: skip


def test_a_process_without_a_socket_is_checked_at_its_port(cli: Cli, settings: Settings) -> None:
    port = free_port("127.0.0.1", 0)
    elsewhere = settings.home / "read-only" / "s.health"
    server = HealthServer(Health("scheduler", lambda: "s#1", {}), path=elsewhere, port=port)
    try:
        assert cli("doctor", "--role", "scheduler", PACELINE_SCHEDULER_HEALTH_PORT=str(port)).exit_code == 0
        assert cli("doctor", "--role", "scheduler").exit_code == 1
    finally:
        server.close()
