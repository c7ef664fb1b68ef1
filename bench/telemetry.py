"""The part `telemetry`: the cost of metrics. Two stacks, with and without them, run the same shape in turn."""

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator
from statistics import median
from typing import Any

from bench import measure as measuring
from bench import shapes
from bench.measure import Measured
from bench.options import Options, Piece
from bench.stack import Stack
from scheduler.embedded import stack as stacks

#: Seconds between two scrapes of each process, a third of the usual interval.
SCRAPE_S = 5.0
ANSWER_S = 10.0


def measure(options: Options) -> Piece:
    """`telemetry`: with all metrics on, divided by without: tasks/s and CPU per task of one shape, the medians of pairs of runs."""
    shape = shapes.small()["many_runs"] if options.small else shapes.many_runs()
    pairs: list[tuple[Measured, Measured]] = []
    with Stack(shape.files) as off, _statsd() as (address, received), contextlib.ExitStack() as ending:
        ports = [stacks.free_port("127.0.0.1", 0) for _ in range(2)]
        environment = {
            "PACELINE_METRICS_PROMETHEUS": "true",
            "PACELINE_METRICS_STATSD": address,
            "PACELINE_SCHEDULER_HEALTH_PORT": str(ports[0]),
            "PACELINE_WORKER_HEALTH_PORT": str(ports[1]),
        }
        on = ending.enter_context(Stack(shape.files, environment=environment))
        scraped = ending.enter_context(_scraping(ports))
        for stack in (off, on):
            measuring.run(stack, shape)  # warm-up
        for iteration in range(options.iterations):
            without, measured = measuring.in_turns(iteration, lambda: measuring.run(off, shape), lambda: measuring.run(on, shape))
            pairs.append((measured, without))
            options.say(f"with metrics {pairs[-1][0].tasks_per_s:.0f} tasks/s, without {pairs[-1][1].tasks_per_s:.0f}")
    return {"telemetry": _summary(pairs) | {"statsd_lines": received[0], "scrapes": scraped[0]}}


def _summary(pairs: list[tuple[Measured, Measured]]) -> dict[str, Any]:
    rates = [on.tasks_per_s / off.tasks_per_s for on, off in pairs]
    cpu = [on.cpu_s_per_task["total"] / off.cpu_s_per_task["total"] for on, off in pairs]
    return {
        "tasks": pairs[0][0].tasks,
        "tasks_per_s_ratio": round(median(rates), 4),
        "cpu_per_task_ratio": round(median(cpu), 4),
        "spread": {"tasks_per_s_ratio": [round(min(rates), 4), round(max(rates), 4)]},
        "tasks_per_s": round(median(on.tasks_per_s for on, _ in pairs), 1),
    }


@contextlib.contextmanager
def _statsd() -> Iterator[tuple[str, list[int]]]:
    """A StatsD server that counts lines: its address, and their number so far."""
    received = [0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.5)
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    received[0] += server.recv(65_536).count(b"\n") + 1

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", received
        finally:
            ended.set()
            thread.join()


@contextlib.contextmanager
def _scraping(ports: list[int]) -> Iterator[list[int]]:
    """Scrape these ports, as Prometheus does; the number of scrapes so far."""
    scraped, ended = [0], threading.Event()

    def scrape() -> None:
        while True:
            for port in ports:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_S) as answer:
                    answer.read()
                scraped[0] += 1
            if ended.wait(SCRAPE_S):
                return

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield scraped
    finally:
        ended.set()
        thread.join()
