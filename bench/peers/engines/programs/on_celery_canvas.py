"""Celery's canvas on Redis: chains, and a chord of a group. Each task passes the number of steps before it on, with itself."""

import os
import time
from typing import Any

from celery import Celery, chain, chord, group

from bench.peers.engines.programs.protocol import POLL_S, REDIS_NUMBERS, REDIS_SOCKET, WORKERS, module, serve, wait_until

BROKER, RESULTS = (f"redis+socket://{os.environ[REDIS_SOCKET]}?virtual_host={number}" for number in REDIS_NUMBERS)
LIMIT_S = 300.0

app = Celery("bench_canvas", broker=BROKER, backend=RESULTS)
app.conf.update(broker_connection_retry_on_startup=True)


@app.task(name="noop")
def noop(before: int | list[int]) -> int:
    """A step. A join gets the numbers of all tasks above it."""
    return 1 + (sum(before) if isinstance(before, list) else before)


def main() -> None:
    """Start a worker, and serve."""
    module(
        "celery",
        "-A",
        __spec__.name,
        "worker",
        "-P",
        "prefork",
        "-c",
        str(WORKERS),
        "-l",
        "ERROR",
        "--without-gossip",
        "--without-mingle",
    )
    wait_until(lambda: bool(app.control.ping(timeout=0.5)), "Celery's worker")
    steps = 0

    def ended(results: list[Any], *, uncounted: int = 0) -> float:
        nonlocal steps
        steps += sum(result.get(timeout=LIMIT_S, interval=POLL_S) for result in results) + uncounted
        return time.time()

    def row(count: int) -> Any:
        return chain(noop.si(0), *[noop.s() for _ in range(count - 1)]).apply_async()

    def wide(count: int) -> float:
        # The tasks between do not take the number of the first: each would count it.
        joined = chord(group(noop.si(0) for _ in range(count)), noop.s())
        return ended([chain(noop.si(0), joined).apply_async()], uncounted=1)

    serve(
        {
            "chain": lambda count: ended([row(count)]),
            "many": lambda runs, count: ended([row(count) for _ in range(runs)]),
            "wide": wide,
        },
        lambda: steps,
    )


if __name__ == "__main__":
    main()
