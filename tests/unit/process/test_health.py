"""The health of the parts of a process, and how other processes read it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import eventually

from scheduler.embedded.stack import free_port
from scheduler.process import health as process_health
from scheduler.process import pidfile
from scheduler.process.health import Health, HealthServer, ServerHealth, StepHealth
from scheduler.process.pidfile import Pidfile
from scheduler.services import heartbeat
from scheduler.settings import Settings


@pytest.fixture
def pulse() -> StepHealth:
    return StepHealth("The loop has not run a service", 10.0)


@pytest.fixture
def health(pulse: StepHealth) -> Health:
    return Health("scheduler", lambda: "s#1", {"loop": pulse}, {"broker": ServerHealth()})


@pytest.fixture
def server(health: Health, short_folder: Path) -> Iterator[Path]:
    server = HealthServer(health, path=short_folder / "s.health")
    yield short_folder / "s.health"
    server.close()


def test_a_pulse_is_wrong_once_it_was_silent_for_too_long(pulse: StepHealth) -> None:
    assert pulse(pulse.at + 10) is None
    assert pulse(pulse.at + 12) == "The loop has not run a service for 12 s."


def test_a_server_that_fails_is_wrong_only_after_a_while_and_until_it_answers() -> None:
    contact = ServerHealth(limit_s=10)
    contact.failed("PostgreSQL does not answer.")
    since = contact.since or 0.0
    contact.failed("PostgreSQL does not answer.")

    assert (contact(since + 9), contact(since + 11)) == (None, "PostgreSQL does not answer.")
    contact.answered()
    assert contact(since + 11) is None


def test_a_scheduler_whose_loop_does_not_turn_is_unhealthy_within_15_s_at_default_settings() -> None:
    found = heartbeat.initial_health(Settings())
    report = found.combined(lambda: "s#1", lambda _: None)
    found.loop.at = found.heartbeat.at = time.monotonic() - 9
    assert report.report()["status"] == "healthy"

    found.loop.at = found.heartbeat.at = time.monotonic() - 14

    assert report.report()["status"] == "unhealthy"
    assert report.report()["parts"]["loop"] == {"status": "unhealthy", "message": "The loop has not run a service for 14 s."}


def test_an_unreachable_broker_only_degrades_a_scheduler() -> None:
    found = heartbeat.initial_health(Settings())
    found.broker.failed("Redis does not answer.")
    found.broker.since = time.monotonic() - 60

    report = found.combined(lambda: "s#1", lambda _: None).report()

    assert report["status"] == "healthy"
    assert report["parts"]["broker"] == {"status": "degraded", "message": "Redis does not answer."}


def test_health_is_answered_on_a_socket_and_at_a_port_with_200_or_503(
    health: Health, pulse: StepHealth, short_folder: Path
) -> None:
    import urllib.error
    import urllib.request

    port = free_port("127.0.0.1", 0)
    server = HealthServer(health, path=short_folder / "s.health", port=port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            assert answer.status == 200
        assert process_health.ask(short_folder / "s.health") == process_health.ask_port("127.0.0.1", port) == health.report()
        pulse.at -= 60
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
        assert refused.value.code == 503
        refused.value.close()
        with pytest.raises(urllib.error.HTTPError) as elsewhere:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
        assert elsewhere.value.code == 404
        elsewhere.value.close()
    finally:
        server.close()
    assert process_health.ask(short_folder / "s.health") is None


def test_a_port_that_is_taken_is_logged_and_not_used(health: Health, short_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port("127.0.0.1", 0)
    first = HealthServer(health, path=short_folder / "1.health", port=port)
    second = HealthServer(health, path=short_folder / "2.health", port=port)

    assert "set another scheduler.health_port" in caplog.text
    assert process_health.ask(short_folder / "2.health") is not None
    first.close()
    second.close()


def test_a_silent_client_blocks_no_other(server: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as mute:
        mute.connect(str(server))
        assert process_health.ask(server) is not None


def child(work: object) -> int:
    """A forked process that waits for its end after `work()`."""
    pid = os.fork()
    if pid == 0:
        try:
            work()  # type: ignore[operator]
            signal.pause()
        finally:
            os._exit(0)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_process_has_certainly_ended_once_it_and_its_forked_children_are_gone(short_folder: Path, tmp_path: Path) -> None:
    def parent() -> None:
        Pidfile(short_folder, "worker").take().note("w#1")
        (tmp_path / "grandchild").write_text(str(child(lambda: None)))
        (tmp_path / "ready").touch()

    pid = child(parent)
    eventually((tmp_path / "ready").exists)

    def dead() -> list[str]:
        found = Pidfile(short_folder, "worker").take()
        try:
            return found.take_ended()
        finally:
            found.leave()

    assert dead() == []
    end(pid)
    assert dead() == []
    os.kill(int((tmp_path / "grandchild").read_text()), signal.SIGKILL)
    assert eventually(dead) == ["w#1"]
    assert dead() == []


def test_marks_of_other_roles_and_hosts_are_left_alone(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    role = short_folder / f"waiter-1{pidfile.MARK}"
    role.write_text(f'{{"host": "{socket.gethostname()}", "id": "other role"}}')
    host = short_folder / f"worker-1{pidfile.MARK}"
    host.write_text('{"host": "elsewhere", "id": "other host"}')

    assert Pidfile(short_folder, "worker").take().take_ended() == []
    assert role.exists() and host.exists()


def test_an_unusable_folder_is_logged_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()

    pidfile_of_worker = Pidfile(tmp_path / "file" / "run", "worker").take()
    pidfile_of_worker.note("w#1")
    pidfile_of_worker.leave()

    assert "cannot create a pidfile" in caplog.text


ENDS = """
import time
from scheduler.process.health import VitalThread

class Duty(VitalThread):
    def work(self):
        raise RuntimeError("a fault")

Duty(name="duty", daemon=True).start()
time.sleep(60)
"""


def test_the_error_of_a_vital_thread_ends_its_process() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=50, check=False)

    assert ended.returncode == 1
    assert "The thread duty ended with an error, so this process ends." in ended.stderr
    assert "RuntimeError: a fault" in ended.stderr
