"""The part of `bench web` that measures how much slower the engine is with open pages: the same shapes without and with them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import Any

from bench import shapes
from bench.measure import Measured, quantiles, run
from bench.shapes import Shape
from bench.stack import Stack
from bench.web_data import Size

#: Holds event streams open and throws away what arrives. Browsers run on other machines, so that this must cost next to nothing.
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
    files = {name: text for shape in chosen for name, text in shape.files.items()}
    with Stack(files) as stack, web(stack) as (address, token):
        for shape in chosen:
            run(stack, shape)  # warm-up
            found[shape.name] = _alternate(stack, shape, address, token, size)
            say(f"{shape.name} with {size.pages} pages: {json.dumps(found[shape.name])}")
    return {"engine_with_pages": found}


def _alternate(stack: Stack, shape: Shape, address: str, token: str, size: Size) -> dict[str, Any]:
    without: list[Measured] = []
    with_pages: list[Measured] = []
    for iteration in range(size.engine_runs):
        # A B B A ...: a machine that becomes slower gives neither an advantage.
        for is_open in (True, False) if iteration % 2 else (False, True):
            if is_open:
                with _pages(address, token, size.pages):
                    with_pages.append(run(stack, shape))
            else:
                without.append(run(stack, shape))
    return {
        "runs": len(without),
        "makespan": _ratio(with_pages, without, lambda one: one.makespan_s),
        "hop": _ratio(with_pages, without, lambda one: quantiles(one.hops_ms)["p50"]),
        "engine_cpu": _ratio(with_pages, without, lambda one: sum(one.cpu_s_per_task[role] for role in ENGINE)),
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


def _ratio(with_pages: list[Measured], without: list[Measured], value: Callable[[Measured], float]) -> dict[str, float]:
    pairs = sorted(value(one) / value(other) for one, other in zip(with_pages, without, strict=True))
    return {
        "ratio": round(median(map(value, with_pages)) / median(map(value, without)), 3),
        "least": round(pairs[0], 3),
        "most": round(pairs[-1], 3),
    }
