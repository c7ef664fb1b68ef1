"""The messages that wait in the broker, read without removing them."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import redis

from scheduler.messaging import broker_keys
from scheduler.messaging.publisher import broker_lists

#: Messages read at once from a list, and in total. In a list with foreign content beyond that, later messages count as lost.
PAGE, MOST_READ = 1000, 100_000


def dispatch_ids_in_broker(broker: redis.Redis, queues: Iterable[str]) -> set[str]:
    """The Celery task IDs of the messages in these queues."""
    ids: set[str] = set()
    for queue in queues:
        for key in broker_lists(queue):
            for item in _items(broker, key):
                # Foreign content is not an error here; workers reject it.
                with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
                    ids.add(json.loads(item)["headers"]["id"])
    return ids


def _items(broker: redis.Redis, key: str) -> Iterator[bytes]:
    """The items of a list, newest first, so that none is missed when messages are added or taken concurrently."""
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
