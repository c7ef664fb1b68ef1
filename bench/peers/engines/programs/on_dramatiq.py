"""dramatiq on Redis: pipelines, and a group with a completion callback. Each step passes the number of steps before it on."""

import os
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

from bench.peers.engines.programs.protocol import POLL_S, REDIS_NUMBERS, REDIS_SOCKET, WORKERS, module, serve

BROKER, COUNTS = (f"unix://{os.environ[REDIS_SOCKET]}?db={number}" for number in REDIS_NUMBERS)
LIMIT_S = 300
#: A list with the numbers of steps of ended runs.
DONE = "bench-done"

broker = RedisBroker(url=BROKER)
broker.add_middleware(GroupCallbacks(RedisBackend(url=COUNTS)))
dramatiq.set_broker(broker)
# It waits for the end of a run for as long as that takes.
counts = redis.Redis.from_url(COUNTS, socket_timeout=None)


@dramatiq.actor
def noop(before: int) -> int:
    """A step."""
    return before + 1


@dramatiq.actor
def last(before: int) -> None:
    """The last step of a run."""
    counts.rpush(DONE, before + 1)


@dramatiq.actor
def single() -> None:
    """A step of `wide`, which nothing follows."""


@dramatiq.actor
def fan(count: int) -> None:
    """A step that starts many, and one when they all have ended."""
    steps = dramatiq.group(single.message() for _ in range(count))
    steps.add_completion_callback(last.message(count + 1))
    steps.run()


def main() -> None:
    """Start the workers, and serve."""
    # The longest pause of a worker that finds nothing, in milliseconds: 1 s by default.
    os.environ["dramatiq_worker_timeout"] = f"{POLL_S * 1000:.0f}"  # noqa: SIM112
    module("dramatiq", __spec__.name, "-p", str(WORKERS), "-t", "1")
    steps = 0

    def ended(runs: int) -> float:
        nonlocal steps
        for _ in range(runs):
            answer = counts.blpop([DONE], LIMIT_S)
            assert answer is not None, f"{LIMIT_S} s were too short for dramatiq"
            steps += int(answer[1])
        return time.time()

    def rows(runs: int, count: int) -> float:
        for _ in range(runs):
            dramatiq.pipeline([noop.message(0), *[noop.message() for _ in range(count - 2)], last.message()]).run()
        return ended(runs)

    def wide(count: int) -> float:
        fan.send(count)
        return ended(1)

    serve({"chain": lambda count: rows(1, count), "many": rows, "wide": wide}, lambda: steps)


if __name__ == "__main__":
    main()
