"""Python's side of a warm JVM, with stand-ins for the JVM: PySpark's server of accumulators, and the text of its exceptions."""

import socket
import threading
from collections.abc import Callable, Iterator
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.accumulators import _start_update_server

from paceline.exceptions import TaskTimeout
from workers.spark.sessions import shared_state
from workers.spark.sessions.shared_state import PythonSide

TOKEN = "the token"


@pytest.fixture
def server() -> Iterator[Any]:
    """As a SparkContext starts it, known to Python's side of a warm JVM."""
    more = {"is_unix_domain_sock": False} if "is_unix_domain_sock" in signature(_start_update_server).parameters else {}
    server = _start_update_server(TOKEN, **more)
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


def asks_a_jvm(alive: list[bool]) -> Exception:
    """An exception of a class of PySpark's whose message comes from a JVM that may have ended."""

    class Captured(Exception):
        def __str__(self) -> str:
            assert alive[0]
            return "no such column"

    Captured.__module__ = "pyspark.errors.exceptions.captured"
    return Captured()


def test_an_exception_has_the_same_text_after_the_end_of_its_jvm() -> None:
    alive = [True]
    error = asks_a_jvm(alive)

    shared_state.keep_texts(error)
    alive[0] = False

    assert (str(error), type(error).__name__) == ("no such column", "Captured")
    assert type(error).__module__ == "pyspark.errors.exceptions.captured"


def test_those_it_was_raised_from_do_too() -> None:
    alive = [True]
    cause, context, one_of = asks_a_jvm(alive), asks_a_jvm(alive), asks_a_jvm(alive)
    cause.__context__ = context
    error = ExceptionGroup("several", [one_of])
    error.__cause__ = cause

    shared_state.keep_texts(error)
    alive[0] = False

    assert [str(one) for one in (cause, context, one_of)] == ["no such column"] * 3


def test_an_exception_whose_jvm_has_ended_already_has_its_known_text() -> None:
    error = asks_a_jvm([False])
    error.errmsg = "An error occurred while calling o1.count"  # type: ignore[attr-defined]

    shared_state.keep_texts(error)

    assert str(error) == "An error occurred while calling o1.count"


def test_exceptions_of_other_packages_are_left_alone() -> None:
    error = ValueError("mine")

    shared_state.keep_texts(error)

    assert type(error) is ValueError


@pytest.mark.parametrize(("cause", "found"), [(TaskTimeout("too long"), True), (ValueError("no"), False)])
def test_an_interruption_is_found_in_the_exception_of_py4j(cause: Exception, found: bool) -> None:
    error = RuntimeError("Error while receiving")
    error.__cause__ = cause

    assert shared_state.is_interruption(error) is found
