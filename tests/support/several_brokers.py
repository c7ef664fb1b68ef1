"""Two Redis servers as the brokers of one installation, each of which can be killed and started again."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from scheduler.messaging.brokers import Brokers
from scheduler.settings import Settings
from support.servers import RedisServer, running_redis


def kill(server: RedisServer) -> None:
    """End a server, and keep it down."""
    embedded = server.embedded
    with embedded.supervisor._guard:  # the supervisor must not restart it in the meantime
        os.kill(embedded.supervisor.pid(embedded.name), signal.SIGKILL)
        embedded.supervisor.stop(embedded.name)


@contextlib.contextmanager
def running_two(folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two empty servers."""
    for name in ("a", "b"):
        (folder / name).mkdir()
    with running_redis(folder / "a") as first, running_redis(folder / "b") as second:
        yield first, second


def with_brokers(settings: Settings, *servers: RedisServer) -> Settings:
    """These settings, with these servers as brokers."""
    url = ",".join(f"redis+socket://{server.embedded.socket}" for server in servers)
    return settings.model_copy(update={"broker": settings.broker.model_copy(update={"url": url})})


def queues_of(settings: Settings) -> list[str]:
    """For each broker, the name of a queue that belongs to it."""
    brokers = Brokers(settings)
    names = [f"q{number}" for number in range(50)]
    return [next(name for name in names if brokers.order(name)[0] is broker) for broker in brokers.all]
