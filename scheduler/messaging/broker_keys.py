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


#: The commands that every client needs. AUTH, HELLO and QUIT need no right. CLIENT SETINFO, unknown to Redis 7.0, may fail.
CONNECT = "+ping +select"
#: The queue report, which schedulers write.
REPORT = "paceline:queues"
#: The wakeups, the epoch and the lock of the search for lost messages.
OWN_KEYS = "paceline:*"
#: A test of a connection, and the tests that no worker has taken: see connection_tests.
TESTS, ASKED_TESTS = "paceline:connection-test:*", "paceline:connection-tests:*"
WAKE = f"(~{OWN_KEYS} +zadd +bzpopmin +zpopmin)"
#: Queues are lists, named by users.
PUBLISH = "(~* +lpush)"
#: kombu's bindings of queues to exchanges, and the lists for replies to remote control.
BINDINGS = "(~_kombu.binding* +sadd +srem +smembers +sismember +exists +multi +exec)"
REPLIES = "*.reply.celery.pidbox*"
#: The channels of remote control and of worker events. The number is that of the Redis database.
CONTROL, EVENTS = "/0.celery.pidbox", "/0.celeryev/*"

ROLES = {
    # Publishes messages, sends and receives wakeups, and searches for lost messages.
    "paceline_scheduler": (
        CONNECT, "+info", "+multi +exec +unwatch", PUBLISH, WAKE, "(~* +llen +lrange +type)",
        f"(~{OWN_KEYS} +get +set +del +watch +pttl)",
    ),
    # Consumes messages and publishes those that follow. It receives remote control but cannot send it. Waiters use it too.
    "paceline_worker": (
        CONNECT, "+multi +exec +unsubscribe +punsubscribe", PUBLISH, WAKE, BINDINGS, "(~* +brpop +rpop +llen +type)",
        f"(~{TESTS} +get +set)",
        # To delete keys of the wrong type, which a task can create with LPUSH: see broker_keys.
        "(~_kombu.binding* ~paceline:waiters +del)", f"(&{CONTROL} +psubscribe)", f"(&{EVENTS} +publish)",
    ),
    # Sends wakeups, reads queue lengths, and asks workers to test connections. It cannot publish tasks.
    "paceline_web": (CONNECT, f"(~{OWN_KEYS} +zadd)", "(~* +llen)", f"(~{TESTS} +get +set +pttl)", f"(~{ASKED_TESTS} +expire)"),
    # Reads queue lengths and worker events, sends remote control and receives the replies. It cannot publish tasks.
    "paceline_flower": (
        CONNECT, "+info +multi +exec +unsubscribe +punsubscribe", BINDINGS, "(~* +llen)", f"(~{REPORT} +get)",
        f"(~{REPLIES} +brpop +rpop +del)",
        f"(&{EVENTS} +psubscribe)", f"(&{CONTROL} +publish)",
    ),
}  # fmt: skip


def _commands() -> list[str]:
    words = " ".join(rule for rules in ROLES.values() for rule in rules).replace("(", " ").replace(")", " ").split()
    return sorted({word for word in words if word.startswith("+")})


#: The rules of the only user of the embedded server. A process that can open its socket runs as the user of the stack and could
#: stop the server, so a password would protect nothing. But a task can neither empty it, nor make it write files, nor exploit
#: defects of its Lua interpreter.
EMBEDDED = ("~*", "&*", "-@all", *_commands())


def user_line(name: str, password: str) -> str:
    """Return the line of redis.conf, or of an ACL file, that creates one of these users."""
    return f"user {name} on >{password} resetchannels -@all {' '.join(ROLES[name])}"


def password_variable(name: str) -> str:
    """Return the name of the environment variable for the password of a user."""
    return f"PACELINE_REDIS_{name.removeprefix('paceline_').upper()}_PASSWORD"
