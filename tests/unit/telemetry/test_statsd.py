"""The StatsD client, against real sockets."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.settings import Settings
from scheduler.telemetry import recorder
from scheduler.telemetry.catalog import CATALOG
from scheduler.telemetry.recorder import Recorder, Statsd


@pytest.fixture
def udp() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        yield server


def address(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


def lines(server: socket.socket) -> list[str]:
    return server.recv(65_536).decode().split("\n")


@pytest.mark.parametrize(
    ("name", "labels", "values", "expected"),
    [
        ("ti.finish", ("d", "t", "success"), [2], ["airflow.ti.finish:2|c", "airflow.ti.finish.d.t.success:2|c"]),
        ("scheduler_heartbeat", (), [2, 2, 2], ["airflow.scheduler_heartbeat:6|c"]),
        ("task.duration", ("d", "t"), [1.2345], ["airflow.task.duration:1234.500|ms", "airflow.dag.d.t.duration:1234.500|ms"]),
        # Characters that would end a name.
        ("pool.open_slots", ("a:b|c d\n",), [1], ["airflow.pool.open_slots.a_b_c_d_:1|g"]),
    ],
)
def test_values_between_two_flushes_are_sent_by_the_total_and_by_the_dotted_name(
    udp: socket.socket, name: str, labels: tuple[str, ...], values: list[float], expected: list[str]
) -> None:
    client = Statsd(address(udp), "airflow")
    for value in values:
        client.send(CATALOG[name], labels, value)
    client.flush()
    client.close()

    assert lines(udp) == expected


def test_a_gauge_that_is_gone_becomes_zero_once(udp: socket.socket) -> None:
    client = Statsd(address(udp), "airflow")
    metric = CATALOG["pool.queued_slots"]
    client.gauges([(metric, ("a",), 3), (metric, ("b",), 0)])
    client.flush()
    assert lines(udp) == ["airflow.pool.queued_slots.a:3|g", "airflow.pool.queued_slots.b:0|g"]

    client.gauges([])
    client.flush()
    assert lines(udp) == ["airflow.pool.queued_slots.a:0|g"]
    client.gauges([])
    client.gauges([(metric, ("c",), -1)])
    client.flush()
    assert lines(udp) == ["airflow.pool.queued_slots.c:0|g", "airflow.pool.queued_slots.c:-1|g"]
    client.close()


def test_a_unix_socket_takes_datagrams(short_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(short_folder / "s"))
        server.settimeout(5)
        client = Statsd(f"unix://{short_folder / 's'}", "airflow")
        client.send(CATALOG["scheduler_heartbeat"], (), 1)
        client.flush()
        client.close()

        assert lines(server) == ["airflow.scheduler_heartbeat:1|c"]


def test_many_lines_become_datagrams_that_fit_into_a_packet(udp: socket.socket) -> None:
    client = Statsd(address(udp), "airflow")
    for number in range(200):
        client.send(CATALOG["ti.start"], ("dag", f"task{number}"), 1)
    client.flush()
    client.close()

    received: list[str] = []
    while len(received) < 201:
        datagram = udp.recv(65_536)
        assert len(datagram) <= recorder.UDP_BYTES
        received += datagram.decode().split("\n")
    assert len(received) == 201


def test_metrics_for_a_missing_server_are_dropped_and_counted_until_it_listens(short_folder: Path, settings: Settings) -> None:
    on = settings.metrics.model_copy(update={"prometheus": True, "statsd": f"unix://{short_folder / 's'}"})
    recorder = Recorder(settings.model_copy(update={"metrics": on}))
    for _ in range(100):
        recorder.record("ti.start", {"dag_id": "d", "task_id": "t" * 200}, 1)
    recorder.flush()
    assert recorder.totals is not None
    assert (recorder.totals.registry.get_sample_value("paceline_statsd_dropped_total") or 0) >= 1

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(short_folder / "s"))
        server.settimeout(5)
        recorder.record("scheduler_heartbeat", {}, 1)
        recorder.flush()
        assert lines(server) == ["airflow.scheduler_heartbeat:1|c"]
    assert recorder.statsd is not None
    recorder.statsd.close()


def test_a_server_that_does_not_read_blocks_only_the_flush_and_not_for_long(short_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(short_folder / "s"))
        client = Statsd(f"unix://{short_folder / 's'}", "airflow")
        for number in range(50_000):
            client.send(CATALOG["ti.start"], ("d" * 100, f"t{number}" * 10), 1)
        client.flush()
        assert client.dropped > 0
        client.close()


def test_the_buffer_of_unsent_lines_is_bounded(monkeypatch: pytest.MonkeyPatch, udp: socket.socket) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 3)
    client = Statsd(address(udp), "airflow")
    for number in range(1000):
        client.send(CATALOG["ti.start"], ("d", f"t{number}"), 1)
    client.flush()

    assert client.dropped > 10
    client.close()
