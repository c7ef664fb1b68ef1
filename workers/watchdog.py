"""Notices a worker that has gone deaf: free slots, waiting messages, and none taken for a while."""

import redis
from celery.worker import state as celery_state

from scheduler.dispatch import broker_lists
from scheduler.doorbell import client
from scheduler.settings import Settings

PATIENCE_S = 30.0


class Watchdog:
    """Looks at one worker's queues. Ask it regularly; it measures from the last sign of hearing."""

    def __init__(self, settings: Settings, queues: tuple[str, ...], concurrency: int, *, patience_s: float = PATIENCE_S) -> None:
        self._redis = client(settings)
        self._lists = [key for queue in queues for key in broker_lists(queue)]
        self._concurrency = concurrency
        self._patience_s = patience_s
        self._taken = 0
        self._heard_at: float | None = None
        self.barked = False

    def deaf(self, now: float) -> bool:
        """Whether the worker should start again; `now` is on the monotonic clock."""
        taken = celery_state.all_total_count[0]
        busy = len(celery_state.reserved_requests) >= self._concurrency
        if self._heard_at is None or busy or taken != self._taken or not self._messages_wait():
            self._taken, self._heard_at = taken, now
        self.barked = self.barked or now - self._heard_at >= self._patience_s
        return self.barked

    def close(self) -> None:
        self._redis.close()

    def _messages_wait(self) -> bool:
        try:
            return any(self._redis.llen(key) for key in self._lists)
        except redis.RedisError:
            return False  # without a broker there is nothing to hear
