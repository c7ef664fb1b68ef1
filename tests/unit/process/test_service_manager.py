"""The datagrams that a process sends to systemd."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.process import role
from scheduler.process.health import Health, ServerHealth, StepHealth
from scheduler.process.role import ServiceManager


@pytest.fixture
def systemd(short_folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(10)
        receiver.bind(str(short_folder / "notify"))
        yield receiver


def of_systemd(systemd: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(systemd.getsockname()), "OTHER": "x", **more}


def test_a_process_that_systemd_did_not_start_sends_nothing() -> None:
    manager = ServiceManager.take({})

    manager.ready()
    manager.watch(lambda: pytest.fail("nobody waits for this"))

    assert manager.interval_s == 0


def test_programs_of_tasks_do_not_inherit_the_socket_and_another_process_keeps_its_watchdog(
    systemd: socket.socket,
) -> None:
    environ = of_systemd(systemd, WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid()))

    manager = ServiceManager.take(environ)

    assert (environ, manager.interval_s) == ({"OTHER": "x"}, pytest.approx(1))
    assert ServiceManager.take(of_systemd(systemd, WATCHDOG_USEC="3000000", WATCHDOG_PID="1")).interval_s == 0


def test_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(10)
        receiver.bind(f"\0paceline-test-{os.getpid()}")

        ServiceManager(f"@paceline-test-{os.getpid()}").ready()

        assert receiver.recv(100) == b"READY=1"


def test_messages_are_dropped_while_the_socket_is_missing(short_folder: Path) -> None:
    path = short_folder / "late"
    manager = ServiceManager(str(path))

    manager.ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(10)
        receiver.bind(str(path))
        manager.stopping()

        assert receiver.recv(100) == b"STOPPING=1"


def test_the_watchdog_is_silent_while_a_part_hangs(systemd: socket.socket) -> None:
    manager = ServiceManager.take(of_systemd(systemd, WATCHDOG_USEC="30000"))
    states = iter([False, True, True, False])
    checked = threading.Event()

    def hangs() -> bool:
        state = next(states, None)
        if state is None:
            checked.set()
        return state is not False

    manager.watch(hangs)

    assert checked.wait(10)
    systemd.setblocking(False)
    assert [systemd.recv(100), systemd.recv(100)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
    with pytest.raises(BlockingIOError):
        systemd.recv(100)


@pytest.fixture
def _stop_signals() -> Iterator[None]:
    """Keep the handlers of the test process, which a role replaces."""
    handlers = {number: signal.getsignal(number) for number in role.NUMBERS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_stop_signals")
def test_a_role_is_ready_once_it_serves_its_health(systemd: socket.socket, short_folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(systemd.getsockname()))

    with role.running("scheduler", short_folder) as running:
        running.serve_health(Health("scheduler", lambda: "s#1", {}), "127.0.0.1", 0)
        assert "NOTIFY_SOCKET" not in os.environ
        assert systemd.recv(100) == b"READY=1"

    assert systemd.recv(100) == b"STOPPING=1"


def test_a_restart_helps_only_if_a_part_hangs_that_needs_no_server() -> None:
    loop, heartbeat, database = StepHealth("The loop has not run", 10), StepHealth("No heartbeat", 10), ServerHealth()
    health = Health("scheduler", lambda: "s#1", {"loop": loop, "heartbeat": heartbeat, "database": database})
    heartbeat.at -= 60
    database.failed("PostgreSQL does not answer.")
    database.since = heartbeat.at

    assert (health.hangs(), health.report()["status"]) == (False, "unhealthy")
    loop.at -= 60
    assert health.hangs()
