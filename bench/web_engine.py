"""The part of `bench web` that measures how much slower the engine is with open pages: the same shapes without and with them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import Any

from bench import shapes
from bench.measure import Measured, in_turns, quantiles, run, warm_up
from bench.shapes import Shape
from bench.stack import Stack
from bench.web_data import Size

#: Holds event streams open and discards the events. Browsers run on other machines, so this must cost very little CPU.
READERS = """
import selectors, socket, sys
host, port, token, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
chosen = selectors.DefaultSelector()
for _ in range(count):
    one = socket.create_connection((host, port))
    one.sendall(f"GET /api/v2/events HTTP/1.1\\r\\nHost: {host}\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n".encode())
    assert b"200" in one.recv(65536)[:40]
    one.setblocking(False)
    chosen.register(one, selectors.EVENT_READ)
print("open", flush=True)
while True:
    for key, _ in chosen.select():
        if not key.fileobj.recv(1 << 20):
            sys.exit("the web process closed a stream")
"""
#: Processes whose CPU counts as the engine's.
ENGINE = ("scheduler", "parser", "worker", "worker_children", "postgres", "redis")

Web = Callable[[Stack], AbstractContextManager[tuple[str, str]]]


def measure(web: Web, size: Size, say: Callable[[str], None]) -> dict[str, Any]:
    """`engine`, by shape: the time and the CPU with open pages over those without, each the ratio of the medians."""
    chosen = [shapes.chain(5), shapes.many(3, 2)] if size.pages < 100 else [shapes.chain(), shapes.many()]
    found: dict[str, Any] = {}
    with Stack(shapes.files_of(chosen)) as stack, web(stack) as (address, token):
        for shape in chosen:
            warm_up(stack, shape)
            found[shape.name] = _alternate(stack, shape, address, token, size)
            say(f"{shape.name} with {size.pages} pages: {json.dumps(found[shape.name])}")
    return {"engine_with_pages": found}


def _alternate(stack: Stack, shape: Shape, address: str, token: str, size: Size) -> dict[str, Any]:
    def run_with_pages() -> Measured:
        with _pages(address, token, size.pages):
            return run(stack, shape)

    pairs = [in_turns(iteration, lambda: run(stack, shape), run_with_pages) for iteration in range(size.engine_runs)]
    return {
        "runs": len(pairs),
        "makespan": _ratio(pairs, lambda measured: measured.makespan_s),
        "hop": _ratio(pairs, lambda measured: quantiles(measured.hops_ms)["p50"]),
        "engine_cpu": _ratio(pairs, lambda measured: sum(measured.cpu_s_per_task[role] for role in ENGINE)),
    }


@contextmanager
def _pages(address: str, token: str, count: int) -> Iterator[None]:
    host, _, port = address.removeprefix("http://").partition(":")
    command = [sys.executable, "-c", READERS, host, port, token, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "open\n"
            yield
        finally:
            process.terminate()


def _ratio(pairs: list[tuple[Measured, Measured]], value: Callable[[Measured], float]) -> dict[str, float]:
    """Of the values with pages to those without, for pairs without and with them."""
    ratios = [value(with_pages) / value(without) for without, with_pages in pairs]
    without, with_pages = (median(map(value, side)) for side in zip(*pairs, strict=True))
    return {"ratio": round(with_pages / without, 3), "least": round(min(ratios), 3), "most": round(max(ratios), 3)}
