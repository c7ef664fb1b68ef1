"""A replica of a test's Redis, which can be promoted, and the name under which both can be the broker."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from scheduler.embedded.stack import free_port
from support.servers import RedisServer, running_redis
from support.waiting import eventually


@dataclass
class Pair:
    """A primary and its replica. The link `socket` names the broker, like a virtual IP."""

    primary: RedisServer
    replica: RedisServer
    socket: Path

    @property
    def url(self) -> str:
        return f"redis+socket://{self.socket}?virtual_host=0"

    def cut_off(self) -> None:
        """End the replication: from now on, the replica lags."""
        with client(self.replica) as connection:
            connection.replicaof("NO", "ONE")

    def fail_over(self) -> None:
        """Kill the primary, and move the name to the replica, which accepts writes."""
        embedded = self.primary.embedded
        with embedded.supervisor._guard:  # the supervisor must not restart it in the meantime
            os.kill(embedded.supervisor.pid(embedded.name), signal.SIGKILL)
            embedded.supervisor.stop(embedded.name)
        self.cut_off()
        self._name(self.replica)

    def _name(self, server: RedisServer) -> None:
        new = self.socket.with_suffix(".new")
        new.symlink_to(server.embedded.socket)
        new.replace(self.socket)


@contextlib.contextmanager
def running_pair(folder: Path) -> Iterator[Pair]:
    """A primary with a replica that has caught up."""
    for name in ("a", "b"):
        (folder / name).mkdir()
    with running_redis(folder / "a") as primary, running_redis(folder / "b") as replica:
        pair = Pair(primary, replica, folder / "broker.sock")
        pair._name(primary)
        port = free_port("127.0.0.1", 0)
        with client(primary) as first, client(replica) as second:
            first.config_set("port", port)
            second.replicaof("127.0.0.1", port)
            eventually(lambda: second.info("replication")["master_link_status"] == "up")
        yield pair


@contextlib.contextmanager
def client(server: RedisServer) -> Iterator["redis.Redis"]:
    with contextlib.closing(redis.Redis(unix_socket_path=str(server.embedded.socket))) as connection:
        yield connection
