"""`paceline doctor --role` and `paceline alive`: the health checks of containers."""

import json
import threading
from collections.abc import Iterator

import pytest

from scheduler.embedded.stack import free_port
from scheduler.process.health import Health
from scheduler.process.health_server import HealthServer
from scheduler.process.pidfile import Pidfile
from scheduler.settings import Settings

from .conftest import Cli

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
