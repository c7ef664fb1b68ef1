"""queue_report: write into Redis what waits for each queue, for Flower, which has no way into the database."""

import contextlib
import json
import time
from datetime import datetime
from typing import Any

import redis
from sqlalchemy import Engine

from scheduler.messaging import broker_keys
from scheduler.messaging.broker_roles import REPORT
from scheduler.messaging.publisher import broker_lists
from scheduler.services.service import Result, TimedService
from scheduler.settings import Settings
from scheduler.store.queries import overview

#: One JSON object: `at`, and `queues` as `overview.queues` gives them.
KEY = REPORT
#: Held by the scheduler that wrote it last, until it is worth writing again.
TURN_KEY = "paceline:queues:turn"
#: Without schedulers the report is forgotten: nobody knows then what waits. An idle scheduler writes it twice a minute.
FORGOTTEN_S = 90
#: Counting takes at most this share of a scheduler's time, however much waits.
SHARE = 0.02
SHORTEST_S = 2.0


class QueueReport(TimedService):
    """Any scheduler writes it for all."""

    name = "queue_report"
    pending = overview.PENDING

    def __init__(self, engine: Engine, settings: Settings, broker: redis.Redis) -> None:
        self._engine = engine
        self._settings = settings
        self._broker = broker
        self.interval_s = settings.scheduler.scheduler_idle_sleep_time

    def run_once(self, now: datetime) -> Result:
        self.write(now)
        return Result()

    def write(self, now: datetime) -> bool:
        """Whether it was written: not if another scheduler has just done so, or Redis is away."""
        with contextlib.suppress(redis.RedisError):
            if not self._broker.set(TURN_KEY, "1", nx=True, px=int(SHORTEST_S * 1000)):
                broker_keys.end_endless_turn(self._broker, TURN_KEY)
                return False
            started = time.monotonic()
            rows = overview.queues(self._engine, silent_after_s=self._settings.worker.heartbeat_timeout)
            pause_s = max(SHORTEST_S, (time.monotonic() - started) / SHARE)
            with self._broker.pipeline(transaction=False) as pipe:
                pipe.set(KEY, json.dumps({"at": now.isoformat(), "queues": rows}, default=_plain), ex=FORGOTTEN_S)
                pipe.set(TURN_KEY, "1", px=int(pause_s * 1000))
                pipe.execute()
            return True
        return False


def read(broker: redis.Redis) -> dict[str, Any] | None:
    """What was written last; None if there is no report, or none that this version can read."""
    try:
        text: Any = broker.get(KEY)
        found = json.loads(text or b"null")
    except redis.ResponseError as error:
        if not broker_keys.is_wrong_type(error):
            raise
        return None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("queues"), list) else None


def in_redis(broker: redis.Redis, names: list[str]) -> dict[str, int]:
    """How many messages Redis holds for each of these queues."""
    with broker.pipeline(transaction=False) as pipe:
        for name in names:
            for key in broker_lists(name):
                pipe.llen(key)
        lengths: Any = iter(pipe.execute())
    return {name: sum(next(lengths) for _ in broker_lists(name)) for name in names}


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
