"""PySpark's server of accumulators, to which a JVM reports: with a stand-in for the JVM."""

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.accumulators import _start_update_server

from workers.spark.sessions.python_side import PythonSide

TOKEN = "the token"


@pytest.fixture
def server() -> Iterator[Any]:
    """As a SparkContext starts it, known to Python's side of a warm JVM."""
    server = _start_update_server(TOKEN, is_unix_domain_sock=False)
    PythonSide(SimpleNamespace(sparkContext=SimpleNamespace(environment={}, _accumulatorServer=server)))  # type: ignore[arg-type]
    yield server
    server.shutdown()


@pytest.fixture
def ended(server: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits until the server has done with one connection."""
    done = threading.Event()
    shutdown_request = server.shutdown_request

    def close(request: Any) -> None:
        shutdown_request(request)
        done.set()

    monkeypatch.setattr(server, "shutdown_request", close)

    def wait() -> None:
        assert done.wait(30)

    return wait


def test_the_end_of_its_jvm_is_no_error(server: Any, ended: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(server.server_address) as jvm:
        jvm.sendall(TOKEN.encode())

    ended()

    assert capfd.readouterr().err == ""


def test_everything_else_still_is(server: Any, ended: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(server.server_address) as somebody:
        somebody.sendall(b"x" * len(TOKEN))
        ended()

    assert "The value of the provided token" in capfd.readouterr().err
