"""What the broker hands a worker. Only what Publisher and Flower send reaches Celery; the rest is dropped and said in a line.

Whoever may write into Redis may write anything there. Celery would end at some of it, and do what other parts ask for: start
other tasks afterwards, kill a child after a second, wait for a year. A dispatch whose message was damaged on its way is queued
without one, which rescue sends again.
"""

import base64
import json
import re
import time
from collections.abc import Mapping
from queue import Empty
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.connection import ConnectionPool, PooledConnection
from kombu.transport import redis
from redis.exceptions import ResponseError

from scheduler.messaging import broker_keys
from scheduler.messaging.publisher import TASK_NAME
from workers import remote_control
from workers.logs import worker_log

#: A body of ours has about 200.
MAX_BODY_CHARACTERS = 4096
LARGEST_ID = 2**63 - 1
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Headers by which a message asks for more than to run once, now.
EMPTY_HEADERS = ("compression", "eta", "expires", "group", "chord", "stamps", "stamped_headers", "replaced_task_nesting")
#: Queues by which Celery's remote control asks and answers.
CONTROL_SUFFIX = ".pidbox"
#: Routing key, pattern and queue.
BINDING_PARTS = 3
#: Lines a minute about what was refused; how many there were beyond that is said with the next.
MAX_LINES, MINUTE_S = 100, 60.0
PAUSE_S = 0.2


class Refusals:
    """Says what was refused, but fills no disk with it."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._lines = self._silent = 0

    def say(self, words: str, *arguments: object) -> None:
        now = time.monotonic()
        if now - self._began > MINUTE_S:
            if self._silent:
                worker_log.error("refused %d more messages", self._silent)
            self._began, self._lines, self._silent = now, 0, 0
        if self._lines < MAX_LINES:
            self._lines += 1
            worker_log.error(words, *arguments)
        else:
            self._silent += 1


refused = Refusals()


class Transport(redis.Transport):  # type: ignore[misc]
    """kombu's, with a look at each message before Celery gets it."""

    def _deliver(self, message: Any, queue: str) -> None:
        judge = remote_control.fault if queue.endswith(CONTROL_SUFFIX) else dispatch_fault
        complaint = envelope_fault(message) or judge(message)
        if complaint is None:
            super()._deliver(message, queue)
        else:
            refused.say("refused a message in queue %s: %s", queue, complaint)


class Channel(redis.Channel):  # type: ignore[misc]
    """kombu's; an item that is no JSON, or a key of the wrong type, is dropped instead of ending the worker."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (ValueError, RecursionError) as error:
            # It is out of the list already, and the connection has read all of it.
            refused.say("refused a message: it is not JSON (%s)", type(error).__name__)
            raise Empty from None
        except ResponseError as error:
            if not broker_keys.is_wrong_type(error):
                raise
            keys = [self._q_for_pri(queue, step) for queue in self.active_queues for step in self.priority_steps]
            if not self._put_aside(error, keys, "list"):
                # Not ours to remove. It asks again at once, so not too often.
                refused.say("no message can be taken: one of the keys %s is no list", ", ".join(keys))
                time.sleep(PAUSE_S)
            raise Empty from None

    def _handle_message(self, client: Any, response: Any) -> Any:
        """A published message; what is no JSON has no data, and kombu passes over it."""
        payload = super()._handle_message(client, response)
        if payload["type"] in {b"message", b"pmessage"}:
            try:
                json.loads(payload["data"])
            except (ValueError, RecursionError, TypeError) as error:
                refused.say("refused a published message: it is not JSON (%s)", type(error).__name__)
                payload["data"] = None
        return payload

    def _queue_bind(self, exchange: str, *arguments: Any) -> None:
        try:
            super()._queue_bind(exchange, *arguments)
        except ResponseError as error:
            if not self._put_aside(error, [self.keyprefix_queue % exchange], "set"):
                raise
            super()._queue_bind(exchange, *arguments)

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        """The bindings of an exchange, without what is none."""
        try:
            table = super().get_table(exchange)
        except ResponseError as error:
            if not self._put_aside(error, [self.keyprefix_queue % exchange], "set"):
                raise
            return []
        return [row for row in table if len(row) == BINDING_PARTS]

    def _put_aside(self, error: ResponseError, keys: list[str], expected: str) -> bool:
        """Whether the error was that one of the keys holds another type, and no longer does."""
        if not broker_keys.is_wrong_type(error):
            return False
        with self.conn_or_acquire() as client:
            return bool(broker_keys.put_aside(client, keys, expected))


Transport.Channel = Channel


class _PooledConnection(PooledConnection):  # type: ignore[misc]
    """A connection over this transport, whatever its URL."""

    def get_transport_cls(self) -> type[Transport]:
        return Transport


class _Pool(ConnectionPool):  # type: ignore[misc]
    """By which Celery answers what remote control asks."""

    def new(self) -> _PooledConnection:
        return _PooledConnection(self, **dict(self.connection._info(resolve=False)))


class StrictConnection(Connection):  # type: ignore[misc]
    """A connection over this transport, whatever its URL; and so are those of its pool."""

    def get_transport_cls(self) -> type[Transport]:
        return Transport

    def Pool(self, limit: int | None = None, **options: Any) -> _Pool:
        return _Pool(self, limit, **options)


def guard(app: Celery) -> None:
    """Let every connection of this app look at what it receives."""
    app.amqp.Connection = StrictConnection


def envelope_fault(message: Any) -> str | None:
    """What is wrong with a message as such; None if it is JSON of a size and form that Celery takes."""
    if not isinstance(message, dict) or not isinstance(message.get("headers"), dict):
        return "it is no message of Celery"
    properties = message.get("properties")
    if not isinstance(properties, dict) or not isinstance(properties.get("delivery_tag"), str):
        return "it has no delivery tag"
    if not isinstance(properties.get("delivery_info"), dict) or properties.get("body_encoding") != "base64":
        return "it does not say how its body is encoded"
    if message.get("content-type") != "application/json" or message.get("content-encoding") != "utf-8":
        return "its content is not JSON in UTF-8"
    return None


def dispatch_fault(message: Mapping[str, Any]) -> str | None:
    """What is wrong with it as a dispatch of a task instance; None if nothing is."""
    headers = message["headers"]
    if headers.get("task") != TASK_NAME:
        return f"it is for another task than {TASK_NAME}"
    if any(headers.get(name) for name in EMPTY_HEADERS) or any(headers.get("timelimit") or ()) or headers.get("retries") != 0:
        return "its headers ask for more than to run once, now"
    return _body_fault(message.get("body"), headers.get("id"))


def _body_fault(encoded: Any, celery_id: Any) -> str | None:
    match _decoded(encoded):
        case [[int() as ti_id, str() as dispatch_id], {**kwargs}, {**embedded}] if not kwargs and not any(embedded.values()):
            if isinstance(ti_id, bool) or not 0 < ti_id <= LARGEST_ID:
                return "it names no task instance"
            if not UUID.fullmatch(dispatch_id) or dispatch_id != celery_id:
                return "it names no dispatch"
            return None
    return "its body is not the id of a task instance and that of a dispatch"


def _decoded(encoded: Any) -> Any:
    if not isinstance(encoded, str) or len(encoded) > MAX_BODY_CHARACTERS:
        return None
    try:
        return json.loads(base64.b64decode(encoded, validate=True))
    except (ValueError, RecursionError):
        return None
