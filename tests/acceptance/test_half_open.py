"""Half-open connections of real schedulers and workers to PostgreSQL and Redis: data is accepted and does not arrive."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chaos.cluster import Partitions
from chaos.faults import HALF_OPEN
from chaos.proxy import Link, Proxy
from chaos.run import chaos
from support.waiting import eventually

#: Seconds in which something would have arrived.
SILENCE_S = 0.3


@pytest.mark.on_demand
@pytest.mark.stack
@pytest.mark.timeout(400)
def test_every_task_runs_once_over_half_open_connections(short_folder: Path) -> None:
    """Cut off for longer than a worker may be silent here, or shorter, and back late or with their connections reset."""
    short_folder.chmod(0o755)  # an embedded PostgreSQL of root's runs as another user

    report = chaos(
        short_folder,
        seed=7,
        seconds=30,
        quick=True,
        at_least=len(HALF_OPEN),
        longest_s=5.0,
        faults=HALF_OPEN,
        measured=(),
        say=lambda _: None,
    )

    assert report.ok, report.text()
    faults = json.loads(report.line)["faults"]
    assert set(faults) - {"other_time_zone"} == {fault.__name__ for fault in HALF_OPEN}, report.text()


@pytest.fixture
def echo(short_folder: Path) -> Iterator[Path]:
    """A server on a Unix socket that answers each line with itself."""
    place = short_folder / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        server.listen()

        def serve(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                while data := client.recv(1000):
                    client.sendall(data)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield place
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture
def link(proxy: Proxy, echo: Path) -> Link:
    return proxy.link(echo)


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as made:
        made.sendall(b"one")
        assert made.recv(100) == b"one"
        yield made


def silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE_S)
    try:
        client.recv(100)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        client.settimeout(10)


@pytest.mark.parametrize("requests", [True, False])
def test_bytes_sent_over_a_cut_link_are_accepted_and_get_no_response(
    proxy: Proxy, link: Link, client: socket.socket, requests: bool
) -> None:
    proxy.do(lambda: link.cut(requests=requests))
    eventually(lambda: not link._answers.is_set())
    client.sendall(b"two")
    assert silent(client), "it is neither answered nor closed"
    assert link.swallowed == 3
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as newcomer:
        newcomer.sendall(b"new")
        assert silent(newcomer)
        assert link.swallowed > 3

        proxy.do(lambda: link.restore(reset=False))

        assert (client.recv(100), newcomer.recv(100)) == (b"two", b"new"), "late"


def test_a_process_is_cut_off_by_one_fault_at_a_time() -> None:
    partitions, names = Partitions(), ["a", "b"]
    with partitions.reserve(names, lambda free: free[0]) as first:
        with ThreadPoolExecutor() as threads:
            with partitions.reserve(names, lambda free: free[0]) as second:
                third = threads.submit(lambda: partitions.reserve(names, lambda free: free[0]).__enter__())
            assert (first, second, third.result(10)) == ("a", "b", "b")


def test_a_link_may_come_back_without_its_connections(proxy: Proxy, link: Link, client: socket.socket) -> None:
    proxy.do(link.cut)
    client.sendall(b"two")
    eventually(lambda: link.swallowed == 3)

    proxy.do(lambda: link.restore(reset=True))

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as newcomer:
        newcomer.sendall(b"new")
        assert newcomer.recv(100) == b"new"
