"""Tests of connections over Redis: a web process asks the workers of a queue, and one of them answers.

A message names a connection; the worker reads its secrets itself. Redis forgets a test, so a lost one costs a click.
"""

import json
import logging
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import redis

from scheduler.messaging import broker_keys
from scheduler.messaging.brokers import BROKER_ERRORS, Brokers

log = logging.getLogger("paceline.broker")

#: The tests that no worker of a queue has taken.
ASKED = "paceline:connection-tests:{}"
#: A test, with its answer once there is one.
TEST = "paceline:connection-test:{}"
TOKEN = re.compile(r"[0-9a-f]{32}")
#: Seconds in which a worker must answer, and after which Redis forgets a test.
ANSWER_S, KEPT_S = 20, 60
#: Characters of an answer.
LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker found: one sentence, without secrets."""

    ok: bool
    message: str
    worker: str


@dataclass(frozen=True, slots=True)
class ConnectionTest:
    """A test that was asked for."""

    token: str
    conn_id: str
    queue: str
    answer: Answer | None = None


def ask(brokers: Brokers, conn_id: str, queue: str) -> ConnectionTest:
    """Ask the workers of a queue to test a connection. BROKER_ERRORS."""
    test, key = ConnectionTest(uuid.uuid4().hex, conn_id, queue), ASKED.format(queue)

    def send(client: redis.Redis) -> None:
        with client.pipeline(transaction=False) as pipe:
            pipe.set(TEST.format(test.token), _text(test), ex=KEPT_S)
            pipe.zadd(key, {test.token: 0})
            pipe.expire(key, ANSWER_S)
            pipe.execute()

    brokers.call(send)
    return test


def find(brokers: Brokers, token: str) -> tuple[ConnectionTest, bool] | None:
    """A test, and whether its time for an answer is over; None if no broker knows it. BROKER_ERRORS."""
    if not TOKEN.fullmatch(token):
        return None
    return next((found for found in brokers.each(lambda client: _find(client, token)) if found is not None), None)


def _find(client: redis.Redis, token: str) -> tuple[ConnectionTest, bool] | None:
    key = TEST.format(token)
    with client.pipeline(transaction=False) as pipe:
        pipe.get(key)
        pipe.pttl(key)
        text, left_ms = pipe.execute()
    test = _test(token, text)
    return None if test is None else (test, left_ms <= (KEPT_S - ANSWER_S) * 1000)


def take(brokers: Brokers, queues: Iterable[str]) -> ConnectionTest | None:
    """The next test that these queues ask for, for the calling worker alone; None also while Redis does not answer."""
    keys = [ASKED.format(queue) for queue in queues]
    with suppress(*BROKER_ERRORS):
        # Of two tests in two brokers, one is taken, and the other is not answered: a rare case, and a second click.
        return next((test for test in brokers.each(lambda client: _take(client, keys)) if test is not None), None)
    return None


def _take(client: Any, keys: list[str]) -> ConnectionTest | None:
    try:
        for key in keys:
            for member, _ in client.zpopmin(key):
                token = member.decode(errors="replace")
                if TOKEN.fullmatch(token) and (test := _test(token, client.get(TEST.format(token)))):
                    return test
    except redis.ResponseError as error:
        if not broker_keys.is_wrong_type(error):
            raise
        broker_keys.put_aside(client, keys, "zset")
    return None


def answer(brokers: Brokers, test: ConnectionTest, found: Answer) -> None:
    """Store the answer to a test that Redis still knows. While Redis does not answer, it is lost."""
    text = _text(ConnectionTest(test.token, test.conn_id, test.queue, found))
    with suppress(*BROKER_ERRORS):
        brokers.each(lambda client: client.set(TEST.format(test.token), text, ex=KEPT_S, xx=True))


def _text(test: ConnectionTest) -> str:
    return json.dumps(asdict(test), ensure_ascii=False)


def _test(token: str, text: bytes | None) -> ConnectionTest | None:
    """The stored test; None if there is none, or if another program wrote it."""
    if text is None:
        return None
    try:
        values = json.loads(text)
        found = values["answer"]
        given = (
            None if found is None else Answer(found["ok"] is True, str(found["message"])[:LONGEST], str(found["worker"])[:LONGEST])
        )
        return ConnectionTest(token, str(values["conn_id"]), str(values["queue"]), given)
    except (ValueError, TypeError, KeyError, RecursionError):
        log.warning("the test %s of a connection in Redis is not one of Paceline", token)
        return None
