"""Moves Redis keys away that hold another type than Paceline and Celery use.

Redis answers WRONGTYPE to every command on such a key until it is moved or deleted.
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
#: Seconds until a moved key expires. Its owner can restore it before.
KEPT_S = 7 * 86_400
#: The answer of PTTL for a key that does not expire.
NEVER = -1


def is_wrong_type(error: BaseException) -> bool:
    """Whether Redis refused a command because its key holds another type."""
    return isinstance(error, redis.ResponseError) and "WRONGTYPE" in str(error)


def put_aside(broker: Any, keys: Iterable[str], expected: str) -> list[str]:
    """Rename the `keys` that exist with another type than `expected` (a result of TYPE), and return them.

    A Redis user without the right to rename deletes them instead. Without either right, or without a connection, they stay.
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


def delete_stuck_lock(broker: Any, key: str, *, longest_s: float = math.inf) -> None:
    """Delete a lock that never expires, or expires later than Paceline's own locks: it is not from a Paceline process."""
    if is_stuck(broker.pttl(key), longest_s=longest_s):
        broker.delete(key)


def is_stuck(left_ms: int, *, longest_s: float) -> bool:
    """Whether a lock with this PTTL is not from a Paceline process."""
    return left_ms == NEVER or left_ms > longest_s * 1000


def _remove(broker: Any, key: str) -> str:
    try:
        broker.rename(key, ASIDE + key)
    except NoPermissionError:
        broker.delete(key)
        return "it was deleted"
    with contextlib.suppress(redis.RedisError):
        broker.expire(ASIDE + key, KEPT_S)
    return f"it is {ASIDE}{key} now"
