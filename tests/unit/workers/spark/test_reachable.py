"""An unreachable master is reported in one sentence, in bounded time."""

import re
import socket
from collections.abc import Iterator

import pytest

from paceline.exceptions import FailTask
from workers.spark import conf

NOBODY = "127.0.0.1:1"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


def check(master: str, timeout_s: float = 0.1) -> None:
    conf.check_master(master, timeout_s=timeout_s, correct="the connection")


@pytest.mark.parametrize("master", [f"spark://{NOBODY},{{}}", "sc://{}"])
def test_one_of_several_masters_is_enough(listener: socket.socket, master: str) -> None:
    check(master.format(f"127.0.0.1:{listener.getsockname()[1]}"))

    connection, _ = listener.accept()
    connection.close()


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,512]", "yarn", "k8s://https://{}"])
def test_masters_without_an_address_of_their_own_are_not_asked(listener: socket.socket, master: str) -> None:
    check(master.format(f"127.0.0.1:{listener.getsockname()[1]}"))

    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize("address", [NOBODY, f"{NOBODY},{NOBODY}", "no.such.host.invalid:7077"])
def test_an_unreachable_master_is_one_sentence_with_the_fix(address: str) -> None:
    with pytest.raises(conf.MasterUnreachableError) as caught:
        check(f"spark://{address}")

    message = str(caught.value)
    assert message.startswith(f"The Spark master spark://{address} did not answer within 0.1 s (nothing answers at ")
    assert re.fullmatch(r"[^\n]*: start it, or correct the connection\.", message)


@pytest.mark.parametrize("address", ["host", "host:", "host:port", ":7077", "127.0.0.1:99999"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(FailTask, match="needs a host and a port, as in spark://host:7077"):
        check(f"spark://{address}")
