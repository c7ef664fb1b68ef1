"""rescue: find messages the broker lost and processes that died, and put their work back where it goes on."""

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from sqlalchemy import Connection, Engine

from scheduler.messaging import broker_keys
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher, broker_lists
from scheduler.messaging.wakeups import EPOCH_KEY
from scheduler.services.queue import send
from scheduler.services.service import Result, TimedService
from scheduler.settings import Settings
from scheduler.store.db.database import transaction
from scheduler.store.runs import instances
from scheduler.store.upkeep import processes, statistics
from scheduler.store.worker import crashes

#: Task instances read at once, and messages sent in one pass.
BATCH = 1000
#: The part of a worker's timeout, and the seconds at least, by which the clock of the database may be set forward between two
#: looks, see docs/explanation/exclusive-tasks.md.
JUMP, SMALL_JUMP_S = 1 / 8, 1.0
#: Held by the scheduler that looks for lost messages; the seconds after which one that died meanwhile holds up nobody.
TURN_KEY, TURN_S = "paceline:rescue", 2.0
#: Messages read at once from a list, and altogether: in one that somebody has filled with millions, later ones count as lost.
PAGE, MOST_READ = 1000, 100_000


@dataclass(frozen=True, slots=True)
class Rescued:
    """Messages sent again, processes found dead, and the runs whose task instances those left behind."""

    sent_again: list[Message]
    dead: list[str]
    runs: list[int]


class Rescue(TimedService):
    """Every scheduler rescues for all: nothing waits for the one that queued it."""

    name = "rescue"
    pending = processes.PENDING

    def __init__(self, engine: Engine, settings: Settings, publisher: Publisher, broker: redis.Redis) -> None:
        self._engine = engine
        self._settings = settings
        self._publisher = publisher
        self._broker = broker
        self._looked_at: datetime | None = None
        #: Since when every look of this scheduler has come late.
        self._late_since: datetime | None = None
        self._ran_at = time.monotonic()
        self._judges_from = datetime.min.replace(tzinfo=UTC)
        self.interval_s = settings.scheduler.orphaned_tasks_check_interval

    def run_once(self, now: datetime) -> Result:
        rescued = self.rescue(now)
        log = [(logging.WARNING, f"{process_id} is dead; its work goes on elsewhere") for process_id in rescued.dead]
        if rescued.sent_again:
            log.append((logging.WARNING, f"{len(rescued.sent_again)} message(s) were not in the broker and were sent again"))
        return Result(runs=rescued.runs, log=log)

    def rescue(self, now: datetime) -> Rescued:
        crashes.note(self._engine)
        dead, runs = self._expire_lost() if self._may_judge(now) else ([], [])
        statistics.refresh(self._engine)
        return Rescued(self._send_lost(), dead, runs)

    def skipped(self, now: datetime) -> None:
        """Nothing is queued or running and no process is silent: keep what `rescue` goes by."""
        self._may_judge(now)
        with contextlib.suppress(redis.RedisError):
            self._broker.set(EPOCH_KEY, "1", nx=True)

    def _may_judge(self, now: datetime) -> bool:
        """Not right after this scheduler itself was away, because it was stopped, or the database could not be reached or was:
        then the others may have been away with it, and each gets the time to give a sign of life.
        """
        timeout = timedelta(seconds=self._settings.worker.heartbeat_timeout)
        away = max(timeout / 2, timedelta(seconds=3 * self._settings.scheduler.orphaned_tasks_check_interval))
        before, self._looked_at = self._looked_at or now, now
        ran_at, self._ran_at = self._ran_at, time.monotonic()
        # The clock of the database was set forward, so everybody looks silent.
        jumped_s = (now - before).total_seconds() - (self._ran_at - ran_at)
        if now - before <= away and jumped_s <= max(JUMP * timeout.total_seconds(), SMALL_JUMP_S):
            self._late_since = None
        elif self._late_since is None or now - self._late_since <= 2 * timeout:
            self._late_since = self._late_since or now
            self._judges_from = now + timeout
        # Else it is always slow, and must not wait for ever.
        return now >= self._judges_from

    def _expire_lost(self) -> tuple[list[str], list[int]]:
        return processes.expire_lost(
            self._engine,
            worker_timeout_s=self._settings.worker.heartbeat_timeout,
            scheduler_timeout_s=self._settings.scheduler.scheduler_health_check_threshold,
            waiter_timeout_s=self._settings.waiter.heartbeat_timeout,
        )

    def _send_lost(self) -> list[Message]:
        """Send what is not in the broker again, unless another scheduler is at it: each would send all of it."""
        turn = str(uuid.uuid4())
        try:
            if not self._broker.set(TURN_KEY, turn, nx=True, px=int(TURN_S * 1000)):
                broker_keys.end_endless_turn(self._broker, TURN_KEY, longest_s=TURN_S)
                return []
        except redis.RedisError:
            return []
        try:
            again = self._dispatch_again()
            send(self._engine, self._publisher, again, step="rescue")
            lost = self._lost_messages()
            send(self._engine, self._publisher, lost, step="rescue")
            return again + lost
        finally:
            with contextlib.suppress(redis.RedisError):
                self._end_turn(turn)

    def _end_turn(self, turn: str) -> None:
        """Let the next one look, unless this turn took so long that another has begun. redis.Redis.lock would do it by a Lua
        script, which no Redis user of ours may run."""
        with self._broker.pipeline() as pipe:
            pipe.watch(TURN_KEY)  # type: ignore[no-untyped-call]
            if pipe.get(TURN_KEY) == turn.encode():
                pipe.multi()
                pipe.delete(TURN_KEY)
                pipe.execute()

    def _dispatch_again(self) -> list[Message]:
        """What was queued before a crash of PostgreSQL, once the workers had time to repeat the claims that it undid."""
        return _dispatch_again(self._engine, self._settings.worker.heartbeat_timeout)

    def _lost_messages(self) -> list[Message]:
        """Queued task instances whose message is not in the broker. One that a worker holds in memory may be sent twice; the
        claim drops the second."""
        try:
            # The key is set anew by the first who looks: it is gone only if Redis came back empty.
            emptied = bool(self._broker.set(EPOCH_KEY, "1", nx=True))
            age_s = 0.0 if emptied else self._settings.scheduler.task_queued_timeout
            return self._missing(age_s)
        except redis.RedisError:
            return []

    def _missing(self, age_s: float) -> list[Message]:
        """All that have been queued for so long are compared with the broker, however many wait there: each list is read once."""
        missing: list[Message] = []
        present: dict[str, set[str]] = {}
        last_id = 0
        while len(missing) < BATCH:
            suspects = _suspects(self._engine, age_s, self._settings.worker.heartbeat_timeout, last_id)
            for queue in {one.queue for one in suspects} - present.keys():
                present[queue] = dispatch_ids_in_broker(self._broker, [queue])
            missing += [one for one in suspects if one.dispatch_id not in present[one.queue]]
            if len(suspects) < BATCH:
                break
            last_id = suspects[-1].ti_id
        return missing


@transaction
def _dispatch_again(connection: Connection, settled_s: float) -> list[Message]:
    return instances.dispatch_again(connection) if crashes.settled(connection, seconds=settled_s) else []


@transaction
def _suspects(connection: Connection, age_s: float, settled_s: float, after_id: int) -> list[Message]:
    if not crashes.settled(connection, seconds=settled_s):
        return []
    return instances.queued_longer_than(connection, age_s, limit=BATCH, after_id=after_id)


def dispatch_ids_in_broker(broker: redis.Redis, queues: Iterable[str]) -> set[str]:
    """The Celery task ids of the messages that wait in these queues."""
    found: set[str] = set()
    for queue in queues:
        for key in broker_lists(queue):
            for item in _items(broker, key):
                # What is no message of ours is the worker's to refuse.
                with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
                    found.add(json.loads(item)["headers"]["id"])
    return found


def _items(broker: redis.Redis, key: str) -> Iterator[bytes]:
    """The newest come first, so none is passed over when messages come or go meanwhile."""
    for start in range(0, MOST_READ, PAGE):
        try:
            page: Any = broker.lrange(key, start, start + PAGE - 1)
        except redis.ResponseError as error:
            if not broker_keys.is_wrong_type(error):
                raise
            broker_keys.put_aside(broker, [key], "list")
            return
        yield from page
        if len(page) < PAGE:
            return
