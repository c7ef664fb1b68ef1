"""queue_report: writes the backlog of each queue to Redis for Flower, which has no access to the database.

Once a minute, it also stores the depth of each queue for pages.
"""

import contextlib
import json
import time
from datetime import datetime

import redis
from sqlalchemy import Engine

from scheduler.messaging import broker_keys
from scheduler.messaging.broker_keys import REPORT
from scheduler.messaging.brokers import BROKER_ERRORS, Brokers
from scheduler.services.service import Result, TimedService
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.queueing import capacity
from scheduler.store.read import operations

#: One JSON object: `at`, and `queues` with the rows of `overview.queues`.
KEY = REPORT
#: The lock of the scheduler that wrote the report last. It expires when the report should be written again.
LOCK_KEY = "paceline:queues:turn"
#: Seconds after which the report expires, because it is stale without schedulers. An idle scheduler writes it twice a minute.
EXPIRES_S = 90
#: The largest share of a scheduler's time for counting, whatever the backlog.
SHARE = 0.02
SHORTEST_S = 2.0


class QueueReport(TimedService):
    """Writes the report. One scheduler at a time writes it for all."""

    name = "queue_report"
    pending = operations.PENDING

    def __init__(self, engine: Engine, settings: Settings, brokers: Brokers) -> None:
        super().__init__(engine, settings)
        self._brokers = brokers
        #: The minute for which the depths were stored last.
        self._stored_at: datetime | None = None

    def run_once(self, now: datetime) -> Result:
        self.write(now)
        return Result()

    def write(self, now: datetime) -> bool:
        """Write the report. False if another scheduler has just written it, or if Redis does not answer."""
        with contextlib.suppress(*BROKER_ERRORS):
            if not self._brokers.call(_lock):
                return False
            started = time.monotonic()
            rows = transact(self._engine, operations.queues, silent_after_s=self._settings.worker.heartbeat_timeout)
            if rows and now.replace(second=0, microsecond=0) != self._stored_at:
                self._stored_at = now.replace(second=0, microsecond=0)
                transact(self._engine, capacity.store_depths, rows, keep_days=self._settings.retention.housekeeping_days)
            pause_s = max(SHORTEST_S, (time.monotonic() - started) / SHARE)
            text = json.dumps({"at": now.isoformat(), "queues": rows}, default=_plain)
            self._brokers.each(lambda client: _write(client, text, pause_s))
            return True
        return False


def _lock(client: redis.Redis) -> bool:
    if client.set(LOCK_KEY, "1", nx=True, px=int(SHORTEST_S * 1000)):
        return True
    broker_keys.delete_stuck_lock(client, LOCK_KEY)
    return False


def _write(client: redis.Redis, text: str, pause_s: float) -> None:
    with client.pipeline(transaction=False) as pipe:
        pipe.set(KEY, text, ex=EXPIRES_S)
        pipe.set(LOCK_KEY, "1", px=int(pause_s * 1000))
        pipe.execute()


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
