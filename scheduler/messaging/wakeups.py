"""Wake-ups over Redis. A ring lost costs one slow poll and nothing else.

Tokens: "queue" (something waits and there may be room), "plan" (a DAG changed, an asset was updated), "run:<id>" (that run may
go on or end), "next:<id>" (so may the runs of the same DAG that wait for that one).
A sorted set keeps each token once however often it is rung, and a ring wakes one scheduler, not all. "queue" has a set of its own:
under load every task that ends rings it, and a scheduler that has just filled the queues does not listen to it for a moment.
"""

import logging
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scheduler.exceptions import START_EMBEDDED, CredentialsError, UnreachableError
from scheduler.messaging import broker_keys
from scheduler.settings import Settings

log = logging.getLogger("paceline.broker")

KEY = "paceline:doorbell"
#: Whoever may write into Redis may write anything there. Nothing else than this is a token; ids are those of PostgreSQL.
TOKEN = re.compile(rb"queue|plan|notify|deferral|(?:run|next):([1-9][0-9]{0,18})")
LARGEST_ID = 2**63 - 1
#: How often it is said that others were dropped.
SAY_S = 60.0
QUEUE, QUEUE_KEY = "queue", "paceline:doorbell:queue"
#: The waiters' own: something was deferred.
WAITERS_KEY = "paceline:waiters"
#: Set by whoever looks first; gone when Redis came back empty, see services/rescue.
EPOCH_KEY = "paceline:epoch"
#: Whoever is woken leaves what is more to the next, so that several schedulers share what was rung in one moment.
MAX_TOKENS_A_WAKE = 50
#: Redis below 7 takes a timeout of a millisecond or less for none at all, and is late by up to a tenth of a second with any other:
#: what is shorter than this, in seconds, is slept here.
SHORTEST_BLOCK_S = 0.02
#: What Redis says when it is there and refuses who we are; some of these come as plain ResponseError.
REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM", "invalid password", "Authentication required", "AUTH")
#: What TLS says when the server, or its certificate, is not what the URL asks for. Waiting would not mend that.
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "Invalid SSL Certificate", "PEM lib")


def client(settings: Settings) -> redis.Redis:
    """A Redis client of the broker URL, with bounded waits."""
    url = settings.broker_url
    if url.startswith("redis+socket://"):
        url = "unix://" + url.removeprefix("redis+socket://").replace("virtual_host=", "db=")
    return redis.Redis.from_url(
        url, socket_timeout=5, socket_connect_timeout=5, health_check_interval=10, retry=Retry(NoBackoff(), 1)
    )


def check(settings: Settings) -> None:
    """Ask the broker for a sign of life; UnreachableError or CredentialsError say what is wrong."""
    broker = client(settings)
    try:
        broker.ping()
    except redis.RedisError as error:
        raise translate(error) from None
    finally:
        broker.close()


def translate(error: BaseException) -> UnreachableError:
    """What a failed command or publish means to a person."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if isinstance(error, redis.AuthenticationError) or any(phrase in text for phrase in REFUSED):
        return CredentialsError(f"Redis refuses the connection: {text}. Correct PACELINE_BROKER_URL.")
    if any(phrase in text for phrase in UNTRUSTED):
        return CredentialsError(
            f"The connection to Redis is not secure: {text}. Correct ssl_ca_certs in PACELINE_BROKER_URL, or whether it is rediss://."
        )
    start = START_EMBEDDED.format("BROKER") if isinstance(error, redis.ConnectionError) and ".sock" in text else None
    return UnreachableError(f"Redis does not answer: {text}. {start or 'Start it, or correct PACELINE_BROKER_URL.'}")


class Wakeups:
    """Rings and waits for rings; never raises because Redis is away."""

    def __init__(self, settings: Settings, key: str = KEY) -> None:
        self._redis = client(settings)
        self._key = key
        #: How many tokens were dropped because nobody of ours rings them.
        self.dropped = 0
        self._said_at: float | None = None

    def wake(self, *tokens: str) -> bool:
        """Wake one scheduler for each token not already rung; False if Redis did not answer."""
        others = dict.fromkeys((token for token in tokens if token != QUEUE), 0)
        try:
            if QUEUE in tokens:
                self._redis.zadd(QUEUE_KEY, {QUEUE: 0})
            if others:
                self._redis.zadd(self._key, others)
        except redis.RedisError:
            return False
        return True

    def wake_waiters(self) -> None:
        """Wake one waiter: something was deferred."""
        with suppress(redis.RedisError):
            self._redis.zadd(WAITERS_KEY, {"deferral": 0})

    def wait(self, timeout_s: float, *, queue: bool = True) -> set[str] | None:
        """Block until a ring or the timeout; the tokens rung, or None at once if Redis does not answer.

        Without `queue` that token stays where it is.
        """
        keys = [self._key, QUEUE_KEY] if queue and self._key == KEY else [self._key]
        try:
            found: list[bytes] = []
            if timeout_s >= SHORTEST_BLOCK_S:
                first: Any = self._redis.bzpopmin(keys, timeout=min(timeout_s, 4))
                if first is None:
                    return set()
                found.append(first[1])
            else:
                time.sleep(max(timeout_s, 0.0))
            with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.zpopmin(key, MAX_TOKENS_A_WAKE)
                rest: Any = pipe.execute()
        except redis.RedisError as error:
            if broker_keys.is_wrong_type(error):
                broker_keys.put_aside(self._redis, keys, "zset")
            return None
        return self._understood([*found, *(member for popped in rest for member, _ in popped)])

    def _understood(self, members: Iterable[bytes]) -> set[str]:
        """The tokens among what was in the keys; the rest is dropped and counted."""
        tokens = set()
        for member in members:
            found = TOKEN.fullmatch(member)
            if found is None or int(found[1] or 0) > LARGEST_ID:
                self.dropped += 1
            else:
                tokens.add(member.decode())
        if self.dropped and (self._said_at is None or time.monotonic() - self._said_at > SAY_S):
            log.warning("%d wake-up(s) in Redis were dropped: Paceline sends none like them", self.dropped)
            self._said_at, self.dropped = time.monotonic(), 0
        return tokens

    def close(self) -> None:
        self._redis.close()
