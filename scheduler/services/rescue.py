"""rescue: finds messages that the broker lost and processes that died, and returns their work to the schedulers."""

import contextlib
import functools
import logging
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import redis
from sqlalchemy import Connection, Engine

from scheduler.messaging import broker_keys
from scheduler.messaging.brokers import BROKER_ERRORS, Brokers
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher, dispatch_ids_in_brokers
from scheduler.messaging.wakeups import EPOCH_KEY
from scheduler.process import measures
from scheduler.services.queue import send
from scheduler.services.service import Result, TimedService
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.moves.queue import dispatch_again, queued_longer_than
from scheduler.store.upkeep import processes, retention
from scheduler.store.worker import claims

#: Task instances read at once, and messages sent in one pass.
BATCH = 1000
#: A larger jump of the database's clock between two passes delays the search for lost processes. The limit is the share JUMP of
#: a worker's timeout, and at least SMALL_JUMP_S seconds, see docs/explanation/exclusive-tasks.md.
JUMP, SMALL_JUMP_S = 1 / 8, 1.0
#: The lock of the scheduler that searches for lost messages, and the seconds after which it expires if that scheduler ends.
LOCK_KEY, LOCK_S = "paceline:rescue", 2.0


@dataclass(frozen=True, slots=True)
class Rescued:
    """Messages sent again, processes declared lost, and the runs of the task instances that these left behind."""

    sent_again: list[Message]
    lost: list[str]
    runs: list[int]


class Rescue(TimedService):
    """Recovers from lost messages and processes. Every scheduler does this for the work of all."""

    name = "rescue"
    pending = processes.PENDING

    def __init__(
        self, engine: Engine, settings: Settings, publisher: Publisher, brokers: Brokers, *, began: float | None = None
    ) -> None:
        """`began` is the monotonic time at which the process began. It may have waited for the database since then."""
        super().__init__(engine, settings)
        self._publisher = publisher
        self.brokers = brokers
        self._last_pass_at: datetime | None = None
        #: Since when every pass of this scheduler has been late.
        self._late_since: datetime | None = None
        self._began = began
        self._ran_at = time.monotonic() if began is None else began
        self._expires_from = datetime.min.replace(tzinfo=UTC)
        self.interval_s = settings.scheduler.orphaned_tasks_check_interval

    def run_once(self, now: datetime) -> Result:
        rescued = self.rescue(now)
        log = [(logging.WARNING, f"{process_id} is lost; other processes continue its work") for process_id in rescued.lost]
        if rescued.sent_again:
            measures.count("scheduler.orphaned_tasks.adopted", len(rescued.sent_again))
            log.append((logging.WARNING, f"{len(rescued.sent_again)} message(s) were not in the broker and were sent again"))
        return Result(runs=rescued.runs, log=log)

    def rescue(self, now: datetime) -> Rescued:
        transact(self._engine, claims.note_crash_free)
        lost: list[str] = []
        runs: list[int] = []
        if self._may_expire(now):
            config = self._settings
            lost, runs = transact(
                self._engine,
                processes.expire_lost,
                worker_timeout_s=config.worker.heartbeat_timeout,
                scheduler_timeout_s=config.scheduler.scheduler_health_check_threshold,
                waiter_timeout_s=config.waiter.heartbeat_timeout,
            )
        transact(self._engine, retention.refresh_statistics)
        return Rescued(self._send_lost(), lost, runs)

    def skipped(self, now: datetime) -> None:
        """Nothing is queued or running, and no heartbeat has expired: only update the state that `rescue` needs."""
        self._may_expire(now)
        with contextlib.suppress(*BROKER_ERRORS):
            self.brokers.each(_set_epoch)

    def _may_expire(self, now: datetime) -> bool:
        """Whether processes without a heartbeat may be declared lost.

        They may not right after a gap in the passes of this scheduler, or between its start and its first pass. Its process was
        stopped then, or the database was down: the others may have had the same gap, and need time to send a heartbeat.
        """
        timeout = timedelta(seconds=self._settings.worker.heartbeat_timeout)
        away = max(timeout / 2, timedelta(seconds=3 * self._settings.scheduler.orphaned_tasks_check_interval))
        waited_s = 0.0 if self._began is None else time.monotonic() - self._began
        before, self._last_pass_at = self._last_pass_at or now - timedelta(seconds=waited_s), now
        ran_at, self._ran_at = self._ran_at, time.monotonic()
        # If the clock of the database was set forward, every heartbeat looks expired.
        jumped_s = (now - before).total_seconds() - (self._ran_at - ran_at)
        if now - before <= away and jumped_s <= max(JUMP * timeout.total_seconds(), SMALL_JUMP_S):
            self._late_since = None
        elif self._late_since is None or now - self._late_since <= 2 * timeout:
            self._late_since = self._late_since or now
            self._expires_from = now + timeout
        # Otherwise this scheduler is always slow, and must not wait forever.
        return now >= self._expires_from

    def _send_lost(self) -> list[Message]:
        """Send lost messages again, unless another scheduler does that now: each would send all of them."""
        token = str(uuid.uuid4())
        try:
            locked = self.brokers.call(functools.partial(_lock, token=token))
        except BROKER_ERRORS:
            return []
        if locked is None:
            return []
        try:
            again = transact(self._engine, _dispatch_again, self._settings.worker.heartbeat_timeout)
            send(self._engine, self._publisher, again, step="rescue")
            lost = self._lost_messages()
            send(self._engine, self._publisher, lost, step="rescue")
            return again + lost
        finally:
            with contextlib.suppress(*BROKER_ERRORS):
                _unlock(locked, token)

    def _lost_messages(self) -> list[Message]:
        """Queued task instances whose message is not in the broker.

        A message that a worker has in memory may be sent twice; the claim drops the second one.
        """
        try:
            # The key exists unless a Redis came back empty; then this sets it again, and only one scheduler succeeds.
            emptied = any(self.brokers.each(_set_epoch))
            age_s = 0.0 if emptied else self._settings.scheduler.task_queued_timeout
            return self._missing(age_s)
        except BROKER_ERRORS:
            return []

    def _missing(self, age_s: float) -> list[Message]:
        """Compare all task instances that have been queued for `age_s` with the brokers, whose lists are read once each."""
        missing: list[Message] = []
        present: dict[str, set[str]] = {}
        last_id = 0
        while len(missing) < BATCH:
            suspects = transact(self._engine, _suspects, age_s, self._settings.worker.heartbeat_timeout, last_id)
            for queue in {message.queue for message in suspects} - present.keys():
                present[queue] = dispatch_ids_in_brokers(self.brokers, [queue])
            missing += [message for message in suspects if message.dispatch_id not in present[message.queue]]
            if len(suspects) < BATCH:
                break
            last_id = suspects[-1].ti_id
        return missing


def _set_epoch(client: redis.Redis) -> bool:
    return bool(client.set(EPOCH_KEY, "1", nx=True))


def _lock(client: redis.Redis, token: str) -> redis.Redis | None:
    """The client if it has the lock now; None if another scheduler has it."""
    if client.set(LOCK_KEY, token, nx=True, px=int(LOCK_S * 1000)):
        return client
    broker_keys.delete_stuck_lock(client, LOCK_KEY, longest_s=LOCK_S)
    return None


def _unlock(client: redis.Redis, token: str) -> None:
    """Delete the lock, unless it has expired and another scheduler has it.

    redis.Redis.lock would use a Lua script, which our Redis users may not run.
    """
    with client.pipeline() as pipe:
        pipe.watch(LOCK_KEY)  # type: ignore[no-untyped-call]
        if pipe.get(LOCK_KEY) == token.encode():
            pipe.multi()
            pipe.delete(LOCK_KEY)
            pipe.execute()


def _dispatch_again(connection: Connection, settled_s: float) -> list[Message]:
    """The task instances queued before a crash of PostgreSQL, after workers had time to repeat the claims that it undid."""
    return dispatch_again(connection) if claims.crash_settled(connection, seconds=settled_s) else []


def _suspects(connection: Connection, age_s: float, settled_s: float, after_id: int) -> list[Message]:
    if not claims.crash_settled(connection, seconds=settled_s):
        return []
    return queued_longer_than(connection, age_s, limit=BATCH, after_id=after_id)
