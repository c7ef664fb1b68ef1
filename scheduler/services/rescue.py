"""rescue: find messages the broker lost and processes that died, and put their work back where it goes on."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import redis
from sqlalchemy import Connection, Engine

from scheduler.dispatch import Message, Publisher, broker_lists
from scheduler.doorbell import EPOCH_KEY
from scheduler.services.queue import send
from scheduler.settings import Settings
from scheduler.store import instances, processes
from scheduler.store.database import transaction

#: Task instances looked at in one pass.
BATCH = 1000


@dataclass(frozen=True, slots=True)
class Rescued:
    """Messages sent again, processes found dead, and the runs whose task instances those left behind."""

    sent_again: list[Message]
    dead: list[str]
    runs: list[int]


class Rescue:
    """Every scheduler rescues for all: nothing waits for the one that queued it."""

    def __init__(self, engine: Engine, settings: Settings, publisher: Publisher, broker: redis.Redis) -> None:
        self._engine = engine
        self._settings = settings
        self._publisher = publisher
        self._broker = broker

    def run_once(self, now: datetime) -> Rescued:
        dead, runs = processes.bury_dead(
            self._engine,
            worker_timeout_s=self._settings.worker.heartbeat_timeout,
            scheduler_timeout_s=self._settings.scheduler.scheduler_health_check_threshold,
            waiter_timeout_s=self._settings.waiter.heartbeat_timeout,
        )
        lost = self._lost_messages()
        send(self._engine, self._publisher, lost, step="rescue")
        return Rescued(lost, dead, runs)

    def _lost_messages(self) -> list[Message]:
        """Queued task instances whose message is not in the broker. One that a worker holds in memory may be sent twice; the
        claim drops the second."""
        try:
            # The key is set anew by the first who looks: it is gone only if Redis came back empty.
            emptied = bool(self._broker.set(EPOCH_KEY, "1", nx=True))
            age_s = 0.0 if emptied else self._settings.scheduler.task_queued_timeout
            suspects = _suspects(self._engine, age_s, self._settings.worker.heartbeat_timeout)
            present = dispatch_ids_in_broker(self._broker, {one.queue for one in suspects})
        except redis.RedisError:
            return []
        return [one for one in suspects if one.dispatch_id not in present]


@transaction
def _suspects(connection: Connection, age_s: float, settled_s: float) -> list[Message]:
    if not processes.settled(connection, seconds=settled_s):
        return []
    return instances.queued_longer_than(connection, age_s, limit=BATCH)


def dispatch_ids_in_broker(broker: redis.Redis, queues: Iterable[str]) -> set[str]:
    """The Celery task ids of the messages that wait in these queues."""
    found: set[str] = set()
    for queue in queues:
        for key in broker_lists(queue):
            found.update(json.loads(body)["headers"]["id"] for body in broker.lrange(key, 0, -1))
    return found
