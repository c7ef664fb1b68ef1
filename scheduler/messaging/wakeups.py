"""Wakeups over Redis. A lost wakeup costs at most one poll interval.

Tokens: "queue" (a task instance waits and there may be capacity), "plan" (a DAG changed, an asset was updated), "run:<id>" (that
run may continue or end), "next:<id>" (runs of the same DAG that wait for that run may continue).
A sorted set holds each token at most once, and each token wakes one scheduler, not all: the one that listens (see listener).
"queue" has its own set: under load every task that ends sends it, and a scheduler that has just filled the queues ignores it for
a moment.
"""

import logging
import re
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

import redis

from scheduler.messaging import broker_keys
from scheduler.messaging.brokers import BROKER_ERRORS, SHARED_TIMEOUT_S, Broker, Brokers, used
from scheduler.settings import Settings

LISTENER_KEY = "paceline:listener"
#: Seconds for which the listener may work before another scheduler takes its place, and the same if there is work for both.
WORKS_S, SHARES_S = 0.115, 0.015
#: Seconds for which it keeps its place beyond the end of its wait.
LATE_S = 1.0
#: Seconds after which another scheduler tries again to become the listener, if the lock does not expire sooner.
TRY_S = 0.1
#: Seconds of the longest wait.
LONGEST_WAIT_S = 4.0


class Listener:
    """One scheduler as a candidate for the listener."""

    def __init__(self, client: Any) -> None:
        self._redis = client
        self._name = uuid.uuid4().hex.encode()
        #: Until then, by the monotonic clock, no other scheduler can have become the listener.
        self._until = 0.0
        #: Whether another scheduler listened at the last attempt.
        self.is_other = False

    def listen(self, wait_s: float) -> float:
        """Become or stay the listener for a wait of `wait_s`, and return 0; else the seconds after which to try again."""
        now, lock_ms = time.monotonic(), int((wait_s + LATE_S) * 1000)
        if now < self._until:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.get(LISTENER_KEY)
                pipe.set(LISTENER_KEY, self._name, px=lock_ms)
                held_by: bytes | None = pipe.execute()[0]
            if held_by is not None and held_by > self._name:
                # Both hold it, as after Redis lost the lock: one of the two leaves.
                self._until, self.is_other = 0.0, True
                return TRY_S
        else:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(LISTENER_KEY, self._name, px=lock_ms, nx=True)
                pipe.pttl(LISTENER_KEY)
                answers: tuple[bool | None, int] = tuple(pipe.execute())
            is_own, left_ms = answers
            if not is_own:
                self.is_other = True
                if broker_keys.is_stuck(left_ms, longest_s=LONGEST_WAIT_S + LATE_S):
                    self._redis.delete(LISTENER_KEY)
                return min(max(left_ms, 1) / 1000, TRY_S)
        self._until, self.is_other = now + lock_ms / 1000, False
        return 0.0

    def work(self, pipe: Any) -> None:
        """Add the command that lets another scheduler listen in a moment, unless this one does so again before."""
        pipe.set(LISTENER_KEY, self._name, px=int(WORKS_S * 1000))
        self._until = time.monotonic() + WORKS_S

    def share(self) -> None:
        """Let another scheduler listen soon: there is work for both."""
        self._redis.set(LISTENER_KEY, self._name, px=int(SHARES_S * 1000))
        self._until = time.monotonic() + SHARES_S

    def leave(self) -> None:
        """Let another scheduler listen now."""
        if time.monotonic() < self._until:
            self._until = 0.0
            self._redis.delete(LISTENER_KEY)


log = logging.getLogger("paceline.broker")

KEY = "paceline:wakeups"
#: Other programs may write anything into Redis. Only members of this form are tokens; the IDs are numbers of PostgreSQL.
TOKEN = re.compile(rb"queue|plan|notify|deferral|bundle|(?:run|next):([1-9][0-9]{0,18})")
LARGEST_ID = 2**63 - 1
#: Seconds between two warnings about dropped members.
WARN_S = 60.0
QUEUE, QUEUE_KEY = "queue", "paceline:wakeups:queue"
PLAN = "plan"
#: What people change by command or by REST API.
Action = Literal[
    "asset updated", "backfill created", "backfill changed", "bundle deployed", "dag paused or unpaused",
    "files to parse", "instances changed", "pool set", "run begun", "run triggered", "runs deleted",
]  # fmt: skip
#: The tokens after each action, besides the tokens of its runs.
AFTER: Mapping[Action, tuple[str, ...]] = {
    "asset updated": (PLAN,),
    "backfill created": (PLAN,),
    "backfill changed": (PLAN, QUEUE),
    "bundle deployed": (),
    "dag paused or unpaused": (PLAN, QUEUE),
    "files to parse": (PLAN,),
    "instances changed": (QUEUE,),
    "pool set": (QUEUE,),
    "run begun": (QUEUE,),
    "run triggered": (),
    "runs deleted": (PLAN, QUEUE),
}
#: The most runs of an action that are announced. The next poll of a scheduler, a second later, examines the others.
MOST_RUNS = 500
#: The key of the waiters: a task was deferred.
WAITERS_KEY = "paceline:waiters"
#: The key of the threads of schedulers that parse bundles: a version of a bundle is wanted.
BUNDLES_KEY = "paceline:bundles"
#: The first scheduler that checks sets this key. It is missing after Redis restarted empty: see services/rescue.
EPOCH_KEY = "paceline:epoch"
#: The most tokens that one scheduler takes at once, so that several schedulers share the tokens of one moment.
MAX_TOKENS_A_WAKE = 50
#: Redis below 7 treats a timeout of a millisecond or less as unlimited, and is up to 0.1 s late with any other. So the process
#: sleeps for shorter times than this, in seconds.
SHORTEST_BLOCK_S = 0.02
#: Seconds for an attempt to wake a scheduler during a request or a command. The wakeup saves at most a second.
SEND_S = 0.5


class Wakeups:
    """Sends wakeups and waits for them. Never raises while Redis is unreachable."""

    def __init__(self, settings: Settings, key: str = KEY, *, timeout_s: float = 5.0) -> None:
        """`timeout_s` is for each of two attempts: SEND_S where a person waits for the end."""
        self._brokers = Brokers(settings, timeout_s)
        #: To send: a wait takes longer.
        self._senders = self._brokers if self._brokers.is_single else Brokers(settings, min(timeout_s, SHARED_TIMEOUT_S))
        self._key = key
        #: This scheduler as a candidate for the listener of each broker.
        self._listeners = {broker.name: Listener(broker.client) for broker in self._brokers.all} if key == KEY else {}
        #: Whether another scheduler listened at the last wait.
        self.another_listens = False
        #: The number of members dropped since the last warning, because they are not tokens of Paceline.
        self.dropped = 0
        self._warned_at: float | None = None

    def wake(self, *tokens: str) -> bool:
        """Wake one scheduler for each token that is not already set. False if Redis did not answer."""
        others = dict.fromkeys((token for token in tokens if token != QUEUE), 0)

        def add(client: redis.Redis) -> None:
            if QUEUE in tokens:
                client.zadd(QUEUE_KEY, {QUEUE: 0})
            if others:
                client.zadd(self._key, others)

        try:
            self._senders.call(add)
        except BROKER_ERRORS:
            return False
        return True

    def announce(self, action: Action, runs: Collection[int] = ()) -> None:
        """Wake schedulers after an action, which changed these runs."""
        if action == "bundle deployed":
            self.wake_parsers()
        self.wake(*AFTER[action], *(f"run:{run}" for run in sorted(runs)[:MOST_RUNS]))

    def wake_waiters(self) -> None:
        """Wake one waiter: a task was deferred."""
        with suppress(*BROKER_ERRORS):
            self._senders.call(lambda client: client.zadd(WAITERS_KEY, {"deferral": 0}))

    def wake_parsers(self) -> None:
        """Wake one scheduler to parse bundles: a version is wanted."""
        with suppress(*BROKER_ERRORS):
            self._senders.call(lambda client: client.zadd(BUNDLES_KEY, {"bundle": 0}))

    def wait(self, timeout_s: float, *, queue: bool = True) -> set[str] | None:
        """Block until a wakeup or the timeout. Returns the tokens, or None at once if Redis does not answer.

        Without `queue`, the token "queue" stays in Redis. So do all, and the wait may be shorter, while another scheduler listens.
        Of several brokers, it waits at the first that answers, where `wake` sends them.
        """
        keys = [self._key, QUEUE_KEY] if queue and self._key == KEY else [self._key]
        timeout_s = min(max(timeout_s, 0.0), LONGEST_WAIT_S)
        broker = self._brokers.order()[0]
        listener = self._listeners.get(broker.name)
        try:
            members = self._read(broker, listener, keys, timeout_s)
        except BROKER_ERRORS as error:
            if broker_keys.is_wrong_type(error):
                broker_keys.put_aside(broker.client, keys, "zset")
                broker_keys.put_aside(broker.client, [LISTENER_KEY], "string")
            self.another_listens = False
            return None
        self.another_listens = listener is not None and listener.is_other
        return self._valid_tokens(members)

    def _read(self, broker: Broker, listener: Listener | None, keys: list[str], timeout_s: float) -> list[bytes]:
        def read(client: redis.Redis) -> list[bytes]:
            if listener is not None and (try_again_s := listener.listen(timeout_s)):
                time.sleep(min(timeout_s, try_again_s))
                return []
            members: list[bytes] = []
            if timeout_s >= SHORTEST_BLOCK_S:
                first: Any = client.bzpopmin(keys, timeout=timeout_s)
                members += [] if first is None else [first[1]]
            else:
                time.sleep(timeout_s)
            with client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.zpopmin(key, MAX_TOKENS_A_WAKE)
                if listener is not None:
                    listener.work(pipe)
                rest: Any = pipe.execute()[: len(keys)]
            if listener is not None and len(rest[0]) == MAX_TOKENS_A_WAKE:
                with suppress(redis.RedisError):  # what was read must not be lost
                    listener.share()
            return [*members, *(member for popped in rest for member, _ in popped)]

        return read(broker.client) if self._brokers.is_single else used(broker, read)

    def _valid_tokens(self, members: Iterable[bytes]) -> set[str]:
        """Return the members that are tokens. The others are dropped and counted."""
        tokens = set()
        for member in members:
            match = TOKEN.fullmatch(member)
            if match is None or int(match[1] or 0) > LARGEST_ID:
                self.dropped += 1
            else:
                tokens.add(member.decode())
        if self.dropped and (self._warned_at is None or time.monotonic() - self._warned_at > WARN_S):
            log.warning("%d wakeup(s) in Redis were dropped: Paceline sends none like them", self.dropped)
            self._warned_at, self.dropped = time.monotonic(), 0
        return tokens

    def leave(self) -> None:
        """Let another scheduler read the wakeups."""
        for listener in self._listeners.values():
            with suppress(*BROKER_ERRORS):
                listener.leave()

    def close(self) -> None:
        self.leave()
        self._brokers.close()
        self._senders.close()
