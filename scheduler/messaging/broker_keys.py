"""Keys of Redis that hold another type than Paceline and Celery keep there: they are moved out of the way.

Redis answers WRONGTYPE to every command on such a key, for as long as it stands there.
"""

import contextlib
import logging
import math
from collections.abc import Iterable
from typing import Any

import redis
from redis.exceptions import NoPermissionError

log = logging.getLogger("paceline.broker")

ASIDE = "paceline:aside:"
#: How long what was moved is kept for whoever misses it.
KEPT_S = 7 * 86_400
#: What PTTL says of a key that does not expire.
NEVER = -1


def is_wrong_type(error: BaseException) -> bool:
    """Whether Redis refused a command because its key holds another type."""
    return isinstance(error, redis.ResponseError) and "WRONGTYPE" in str(error)


def put_aside(broker: Any, keys: Iterable[str], expected: str) -> list[str]:
    """Rename those of `keys` that are there and not of the type `expected` (as TYPE says it); which they were.

    A Redis user that may not rename deletes instead; one that may do neither, or cannot reach Redis, leaves them.
    """
    moved = []
    for key in dict.fromkeys(keys):
        with contextlib.suppress(redis.RedisError):
            kind = broker.type(key).decode()
            if kind not in {expected, "none"}:
                where = _remove(broker, key)
                log.error("the Redis key %s held a %s in place of a %s; %s", key, kind, expected, where)
                moved.append(key)
    return moved


def end_endless_turn(broker: Any, key: str, *, longest_s: float = math.inf) -> None:
    """Delete a lock that never expires, or later than any process of ours lets it: then none of ours took it."""
    left_ms: int = broker.pttl(key)
    if left_ms == NEVER or left_ms > longest_s * 1000:
        broker.delete(key)


def _remove(broker: Any, key: str) -> str:
    try:
        broker.rename(key, ASIDE + key)
    except NoPermissionError:
        broker.delete(key)
        return "it was deleted"
    with contextlib.suppress(redis.RedisError):
        broker.expire(ASIDE + key, KEPT_S)
    return f"it is {ASIDE}{key} now"
