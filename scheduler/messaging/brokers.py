"""The Redis servers of `broker.url`: one, or several that share the queues.

Each queue belongs to one broker, by rendezvous hashing of its name over the brokers that answer. Workers take messages from all
brokers, and schedulers look for lost messages in all, so processes need not agree on which broker that is. See docs/adr/0097.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from paceline.exceptions import START_EMBEDDED, CredentialsError, UnreachableError
from scheduler.messaging import broker_keys
from scheduler.settings import Settings

log = logging.getLogger("paceline.broker")

R = TypeVar("R")

#: The errors of a broker that does not answer, or that refuses a command.
BROKER_ERRORS = (redis.RedisError, OSError)
#: Seconds for which a process tries a broker last after it failed. They double with each failure in a row, up to the second number.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 30.0
#: Seconds for an attempt to connect to one of several brokers, and to publish or to send a wakeup there: another one can do it.
CONNECT_S, SHARED_TIMEOUT_S = 1.0, 2.0
#: Error texts of Redis for wrong credentials or missing rights. Some come as plain ResponseError.
REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM", "invalid password", "Authentication required", "AUTH")
#: Error texts of TLS when the server, or its certificate, does not match the URL. Waiting would not help.
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "Invalid SSL Certificate", "PEM lib")


@dataclass(slots=True)
class _State:
    """How this process found a broker, through any of its connections."""

    problem: UnreachableError | None = None
    pause_s: float = SHORTEST_PAUSE_S
    paused_until: float = 0.0


_states: dict[str, _State] = {}


class Broker:
    """One Redis server, and whether it failed when this process used it last."""

    def __init__(self, url: str, connected: redis.Redis) -> None:
        self.name = name_of(url)
        self.client = connected
        self._state = _states.setdefault(self.name, _State())

    @property
    def problem(self) -> UnreachableError | None:
        """Why it failed the last time; None if it answered. Of several brokers only."""
        return self._state.problem

    @property
    def is_paused(self) -> bool:
        """Whether it failed a moment ago, or is being tried again."""
        return self.problem is not None and time.monotonic() < self._state.paused_until

    def begin(self) -> None:
        """Let other threads leave it out while one tries it again, which may take a while."""
        if self.problem is not None:
            self._state.paused_until = time.monotonic() + LONGEST_PAUSE_S

    def failed(self, error: BaseException) -> None:
        state = self._state
        is_new, state.problem = state.problem is None, translate(error, self.name)
        state.pause_s = SHORTEST_PAUSE_S if is_new else min(2 * state.pause_s, LONGEST_PAUSE_S)
        if isinstance(error, redis.TimeoutError):
            # Each attempt takes seconds. One that is refused takes none.
            state.pause_s = LONGEST_PAUSE_S
        state.paused_until = time.monotonic() + state.pause_s
        if is_new:
            log.warning("%s. The others carry its queues", state.problem.problem.rstrip("."))

    def answered(self) -> None:
        if self.problem is not None:
            self._state.problem = None
            log.warning("the broker %s answers again", self.name)


class Brokers:
    """The brokers of a process. With a single one, all errors are raised, and no failure is remembered."""

    def __init__(self, settings: Settings, timeout_s: float = 5.0) -> None:
        """`timeout_s` is for an attempt to connect or to read. With a single broker, there are two attempts."""
        urls = settings.broker_urls
        self.all = [Broker(url, client(url, timeout_s, is_only=len(urls) == 1)) for url in urls]
        self._ranked: dict[str, list[Broker]] = {}

    @property
    def is_single(self) -> bool:
        return len(self.all) == 1

    def order(self, queue: str | None = None) -> Sequence[Broker]:
        """The brokers in the order in which to try them for a queue, or for what belongs to no queue: those that failed last."""
        if self.is_single:
            return self.all
        return sorted(self.all if queue is None else self._of_queue(queue), key=lambda broker: broker.is_paused)

    def call(self, work: Callable[[redis.Redis], R], queue: str | None = None) -> R:
        """Return `work(client)` of the first broker that answers. If none does, raise the error of the last one."""
        if self.is_single:
            return work(self.all[0].client)
        *others, last = self.order(queue)
        for broker in others:
            try:
                return used(broker, work)
            except BROKER_ERRORS as error:
                if broker_keys.is_wrong_type(error):
                    raise
        return used(last, work)

    def each(self, work: Callable[[redis.Redis], R]) -> list[R]:
        """Return `work(client)` of each broker that answers. If none does, raise the error of the last one.

        One that failed a moment ago is tried only if no other answers.
        """
        if self.is_single:
            return [work(self.all[0].client)]
        found: list[R] = []
        last: BaseException | None = None
        for broker in self.order():
            if broker.is_paused and found:
                break
            try:
                found.append(used(broker, work))
            except BROKER_ERRORS as error:
                last = error
        if last is not None and not found:
            raise last
        return found

    def problems(self) -> list[UnreachableError]:
        """Why each of several brokers failed the last time, as this process used them."""
        return [broker.problem for broker in self.all if broker.problem is not None]

    def close(self) -> None:
        """Close the connections. The next use opens new ones."""
        for broker in self.all:
            broker.client.close()

    def _of_queue(self, queue: str) -> list[Broker]:
        ranked = self._ranked.get(queue)
        if ranked is None:
            ranked = self._ranked[queue] = by_rendezvous(queue, self.all)
        return ranked


def used(broker: Broker, work: Callable[[redis.Redis], R]) -> R:
    """Return `work(client)` of one of several brokers, and remember whether it answered."""
    broker.begin()
    try:
        found = work(broker.client)
    except BROKER_ERRORS as error:
        if not broker_keys.is_wrong_type(error):
            broker.failed(error)
        raise
    broker.answered()
    return found


def by_rendezvous(queue: str, brokers: Iterable[Broker]) -> list[Broker]:
    """The brokers in the order in which they carry a queue. Without one of them, only its own queues move."""
    return sorted(brokers, key=lambda broker: hashlib.sha256(f"{broker.name} {queue}".encode()).digest())


def client(url: str, timeout_s: float = 5.0, *, is_only: bool = True) -> redis.Redis:
    """Return a Redis client for one URL, whose attempts to connect or to read end after `timeout_s` seconds."""
    if url.startswith("redis+socket://"):
        url = "unix://" + url.removeprefix("redis+socket://").replace("virtual_host=", "db=")
    if is_only:
        retry, connect_s = Retry(NoBackoff(), 1), timeout_s
    else:
        # A second attempt only where the first one met a connection that had ended since its last use.
        retry, connect_s = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)), min(timeout_s, CONNECT_S)
    return redis.Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=connect_s, health_check_interval=10, retry=retry
    )


def name_of(url: str) -> str:
    """The address in a URL, without credentials and options."""
    parts = urlsplit(url)
    path, options = parts.path.rstrip("/"), dict(parse_qsl(parts.query))
    number = options.get("virtual_host", options.get("db", "0"))
    return parts.netloc.rpartition("@")[2] + path.removesuffix("/0") + ("" if number == "0" else f"/{number}")


def check(settings: Settings) -> None:
    """Ping the brokers. CredentialsError if one of them rejects this process, UnreachableError if none answers."""
    brokers = Brokers(settings)
    try:
        brokers.each(lambda client: client.ping())
    except BROKER_ERRORS as error:
        if brokers.is_single:
            raise translate(error) from None
        raise (_refused(brokers) or brokers.problems())[0] from None
    finally:
        brokers.close()
    if refused := _refused(brokers):
        raise refused[0]


def _refused(brokers: Brokers) -> list[CredentialsError]:
    return [problem for problem in brokers.problems() if isinstance(problem, CredentialsError)]


def translate(error: BaseException, name: str | None = None) -> UnreachableError:
    """Return the Paceline error for a failed command or publish, with a message for users. `name` is that of one of several."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    server = "Redis" if name is None else f"The broker {name}"
    if isinstance(error, redis.AuthenticationError) or any(phrase in text for phrase in REFUSED):
        return CredentialsError(f"{server} rejects the connection: {text}.", fix="Correct PACELINE_BROKER_URL.")
    if any(phrase in text for phrase in UNTRUSTED):
        return CredentialsError(
            f"The connection to {server if name is None else f'the broker {name}'} is not secure: {text}.",
            fix="Correct ssl_ca_certs in PACELINE_BROKER_URL, or whether it is rediss://.",
        )
    start = START_EMBEDDED.format("BROKER") if isinstance(error, redis.ConnectionError) and ".sock" in text else None
    return UnreachableError(f"{server} does not answer: {text}.", fix=start or "Start it, or correct PACELINE_BROKER_URL.")
