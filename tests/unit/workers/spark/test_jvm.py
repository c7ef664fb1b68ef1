"""The end of a JVM: its connections, its folders, and the Python daemons that count as running."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.clientserver import ClientServer, ClientServerConnection, JavaClient, JavaParameters, PythonParameters
from support.waiting import eventually

from workers.spark.sessions import jvm
from workers.spark.sessions.jvm import Scratch
from workers.spark.sessions.shared_state import is_running


def test_a_connection_that_a_thread_reads_is_closed_too() -> None:
    ours, theirs = socket.socketpair()
    client = JavaClient(JavaParameters(), PythonParameters(), finalizer_deque=deque())
    connection = ClientServerConnection(JavaParameters(), PythonParameters(), SimpleNamespace(pool=None), client)
    connection.socket, connection.stream = ours, ours.makefile("rb")
    client.deque.append(connection)
    reading, lines = threading.Event(), []

    def read(stream=connection.stream) -> None:
        reading.set()
        lines.append(stream.readline())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert reading.wait(10)
    disconnecting = threading.Thread(
        target=jvm._disconnect, args=(SimpleNamespace(_gateway_client=client, shutdown_callback_server=lambda: None),), daemon=True
    )
    disconnecting.start()
    disconnecting.join(10)

    assert not disconnecting.is_alive()
    reader.join(10)
    assert lines == [b""]
    theirs.close()


def test_a_connection_over_which_the_jvm_calls_python_is_closed_too() -> None:
    """As after a stream with `foreachBatch`: a thread waits for the next call of the JVM."""
    gateway = ClientServer(JavaParameters(), PythonParameters(port=0, daemonize=True, daemonize_connections=True))
    server = gateway.get_callback_server()

    def connected() -> socket.socket | None:
        """Its port is known a moment before it listens."""
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", server.get_listening_port()))
        return None

    theirs = eventually(connected)
    (connection,) = eventually(lambda: list(server.connections))
    disconnecting = threading.Thread(target=jvm._disconnect, args=(gateway,), daemon=True)
    disconnecting.start()
    disconnecting.join(10)

    assert not disconnecting.is_alive()
    assert connection.socket is None
    assert theirs.recv(1) == b""
    theirs.close()


HOLDS = "import sys; from workers.spark.sessions.jvm import Scratch; print(Scratch().path, flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_folder_of_a_killed_process_is_deleted_at_the_next_start_and_not_before(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        (left / "blocks").mkdir()

        mine = Scratch()
        assert left.is_dir()

        other.kill()
        other.wait()
        Scratch().remove()
    assert list(folder.iterdir()) == [mine.path]
    mine.remove()
    mine.remove()
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_only_linked_to_or_not_yet_held_stays(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "lock").touch()
    (folder / "paceline-jvm-link").symlink_to(folder / "elsewhere")
    (folder / "paceline-jvm-new").mkdir()

    Scratch().remove()

    assert (folder / "elsewhere" / "lock").exists()
    assert (folder / "paceline-jvm-new").exists()


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as made:
        yield made
        made.kill()


def test_one_that_waits_does_and_one_that_is_stopped_or_gone_does_not(process: "subprocess.Popen[bytes]") -> None:
    assert is_running(process.pid)

    process.send_signal(signal.SIGSTOP)
    eventually(lambda: not is_running(process.pid))

    process.kill()
    process.wait()
    assert not is_running(process.pid)


def test_a_killed_daemon_stops_counting_immediately() -> None:
    for _ in range(50):
        with subprocess.Popen(["sleep", "60"]) as process:
            os.kill(process.pid, signal.SIGKILL)

            assert not is_running(process.pid)
