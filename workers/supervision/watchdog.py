"""Detects a worker that receives no messages although it has free slots and messages wait."""

import redis
from celery.worker import state as celery_state

from scheduler.messaging.publisher import broker_lists
from scheduler.messaging.wakeups import client
from scheduler.process.health import ServerHealth
from scheduler.settings import Settings


class Watchdog:
    """Watches the queues of a worker. Call `must_restart` regularly: it measures the time since the last message."""

    def __init__(self, settings: Settings, queues: tuple[str, ...], concurrency: int) -> None:
        self._redis = client(settings)
        self._lists = [key for queue in queues for key in broker_lists(queue)]
        self._concurrency = concurrency
        self._patience_s = settings.worker.deaf_timeout
        self._taken = 0
        self._received_at: float | None = None
        self._silent_s = 0.0
        self.restarts = False
        #: Whether Redis answers the watchdog, which has its own connection.
        self.broker = ServerHealth()

    def must_restart(self, now: float) -> bool:
        """Whether the worker must restart. `now` is the time on the monotonic clock."""
        taken = celery_state.all_total_count[0]
        busy = len(celery_state.reserved_requests) >= self._concurrency
        waiting = self._messages_wait()
        if self._received_at is None or busy or taken != self._taken or not waiting:
            self._taken, self._received_at = taken, now
        self._silent_s = now - self._received_at
        self.restarts = self.restarts or self._silent_s >= self._patience_s
        return self.restarts

    def complaint(self, now: float) -> str | None:
        """Report a worker that has received no messages for half of worker.deaf_timeout, or restarts for that reason."""
        if not self.restarts and self._silent_s < self._patience_s / 2:
            return None
        return f"It has taken no message for {self._silent_s:.0f} s although it is free and messages wait; it restarts itself."

    def _messages_wait(self) -> bool:
        try:
            waiting = any(self._redis.llen(key) for key in self._lists)
        except redis.RedisError:
            self.broker.failed("Redis does not answer; it takes messages once it does.")
            return False  # no messages can arrive without a broker
        self.broker.answered()
        return waiting
