"""The message filter of a worker. Only messages from Publisher and Flower reach Celery. All others are dropped and logged.

Every client of Redis can write any message. Some would crash Celery. Others would make it start other tasks, kill a pool process
after a second or wait for a year. If the message of a dispatch was damaged, its task instance is queued without a message, and
rescue publishes it again.
"""

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any

from celery import Celery
from kombu.connection import ConnectionPool, PooledConnection
from kombu.transport import redis
from redis.exceptions import ResponseError

from scheduler.messaging import broker_keys
from scheduler.messaging.message import VERSION
from scheduler.messaging.publisher import TASK_NAME, FailoverConnection, broker_lists
from workers.celery_worker import remote_control
from workers.process.logs import worker_log

#: A body from Publisher has about 200.
MAX_BODY_CHARACTERS = 4096
LARGEST_ID = 2**63 - 1
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Headers that must be empty: they request more than one immediate run.
EMPTY_HEADERS = ("compression", "group", "chord", "stamps", "stamped_headers", "replaced_task_nesting")
#: The time limits of Celery, none of which a dispatch has.
NO_LIMITS: tuple[Any, ...] = (None, [], [None, None])
#: The suffix of the queues of Celery's remote control.
CONTROL_SUFFIX = ".pidbox"
#: Routing key, pattern and queue.
BINDING_PARTS = 3
#: Maximum number of log lines per minute. The number of further refused messages is logged later.
MAX_LINES, MINUTE_S = 100, 60.0
PAUSE_S = 0.2


class Refusals:
    """Logs refused messages, with a limit so that they do not fill the disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = float("-inf")
        self._lines = self._silent = 0

    def log(self, text: str, *arguments: object) -> None:
        now = self._clock()
        if now - self._began > MINUTE_S:
            if self._silent:
                worker_log.error("refused %d more messages", self._silent)
            self._began, self._lines, self._silent = now, 0, 0
        if self._lines < MAX_LINES:
            self._lines += 1
            worker_log.error(text, *arguments)
        else:
            self._silent += 1


refused = Refusals()


class Transport(redis.Transport):  # type: ignore[misc]
    """kombu's transport, which checks each message before Celery receives it."""

    def _deliver(self, message: Any, queue: str) -> None:
        check = remote_control.fault if queue.endswith(CONTROL_SUFFIX) else dispatch_fault
        fault = envelope_fault(message) or check(message)
        if fault is None:
            super()._deliver(message, queue)
        else:
            refused.log("refused a message in queue %s: %s", queue, fault)


class Channel(redis.Channel):  # type: ignore[misc]
    """kombu's channel. An item that is not JSON, or a key of the wrong type, is dropped and does not end the worker."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)
        except (ValueError, RecursionError) as error:
            # Redis has already removed it from the list, and the connection has read all of it.
            refused.log("refused a message: it is not JSON (%s)", type(error).__name__)
            raise Empty from None
        except ResponseError as error:
            if not broker_keys.is_wrong_type(error):
                raise
            keys = [self._q_for_pri(queue, step) for queue in self.active_queues for step in self.priority_steps]
            if not self._put_aside(error, keys, "list"):
                # The worker may not remove it. It tries again at once, so a pause limits the rate.
                refused.log("no message can be consumed: one of the Redis keys %s is not a list", ", ".join(keys))
                time.sleep(PAUSE_S)
            raise Empty from None

    def _handle_message(self, client: Any, response: Any) -> Any:
        """Parse a published message. An item that is not JSON gets no data, so that kombu ignores it."""
        payload = super()._handle_message(client, response)
        if payload["type"] in {b"message", b"pmessage"}:
            try:
                json.loads(payload["data"])
            except (ValueError, RecursionError, TypeError) as error:
                refused.log("refused a published message: it is not JSON (%s)", type(error).__name__)
                payload["data"] = None
        return payload

    def _size(self, queue: str) -> int:
        """Return the length of a queue, which Celery asks for when it begins to consume and does not use."""
        try:
            return int(super()._size(queue))
        except ResponseError as error:
            if not broker_keys.is_wrong_type(error):
                raise
            self._put_aside(error, broker_lists(queue), "list")
            return 0

    def _queue_bind(self, exchange: str, *arguments: Any) -> None:
        try:
            super()._queue_bind(exchange, *arguments)
        except ResponseError as error:
            if not self._put_aside(error, [self.keyprefix_queue % exchange], "set"):
                raise
            super()._queue_bind(exchange, *arguments)

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        """Return the valid bindings of an exchange."""
        try:
            table = super().get_table(exchange)
        except ResponseError as error:
            if not self._put_aside(error, [self.keyprefix_queue % exchange], "set"):
                raise
            return []
        return [row for row in table if len(row) == BINDING_PARTS]

    def _put_aside(self, error: ResponseError, keys: list[str], expected: str) -> bool:
        """Move keys of another type away. Returns whether one of them was the cause of the error and was moved."""
        if not broker_keys.is_wrong_type(error):
            return False
        with self.conn_or_acquire() as client:
            return bool(broker_keys.put_aside(client, keys, expected))


Transport.Channel = Channel


class _PooledConnection(PooledConnection, FailoverConnection):  # type: ignore[misc]
    """A pooled connection that uses this transport for any URL."""

    def get_transport_cls(self) -> type[Transport]:
        return Transport


class _Pool(ConnectionPool):  # type: ignore[misc]
    """The pool of connections through which Celery replies to remote control."""

    def new(self) -> _PooledConnection:
        return _PooledConnection(self, **dict(self.connection._info(resolve=False)))


class StrictConnection(FailoverConnection):
    """A connection that uses this transport for any URL, also in its pool."""

    def get_transport_cls(self) -> type[Transport]:
        return Transport

    def Pool(self, limit: int | None = None, **options: Any) -> _Pool:
        return _Pool(self, limit, **options)


def guard(app: Celery) -> None:
    """Make all connections of this app check the messages that they receive."""
    app.amqp.Connection = StrictConnection


def envelope_fault(message: Any) -> str | None:
    """Return the fault in the format of a message; None if it is JSON in the form that Celery accepts."""
    if not isinstance(message, dict) or not isinstance(message.get("headers"), dict):
        return "it is not a Celery message"
    properties = message.get("properties")
    if not isinstance(properties, dict) or not isinstance(properties.get("delivery_tag"), str):
        return "it has no delivery tag"
    if not isinstance(properties.get("delivery_info"), dict) or properties.get("body_encoding") != "base64":
        return "its body encoding is not base64"
    if message.get("content-type") != "application/json" or message.get("content-encoding") != "utf-8":
        return "its content is not JSON in UTF-8"
    return None


def dispatch_fault(message: Mapping[str, Any]) -> str | None:
    """Return the fault of a message as a dispatch of a task instance; None if it is valid."""
    headers = message["headers"]
    if fault := _version_fault(headers.get("message_version", 1)):
        return fault
    if headers.get("task") != TASK_NAME:
        return f"it is for another task than {TASK_NAME}"
    is_later = any(headers.get(name) is not None for name in ("eta", "expires")) or headers.get("timelimit") not in NO_LIMITS
    if is_later or any(headers.get(name) for name in EMPTY_HEADERS) or headers.get("retries") != 0:
        return "its headers request more than one immediate run"
    return _body_fault(message.get("body"), headers.get("id"))


def _version_fault(version: Any) -> str | None:
    """The task instance of a message that a newer release sent stays queued: schedulers send it again until a worker reads it."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        return "its version is not a positive number"
    return "a newer release of Paceline sent it: upgrade this worker. Schedulers send it again" if version > VERSION else None


def _body_fault(encoded: Any, celery_id: Any) -> str | None:
    match _decoded(encoded):
        case [[int() as ti_id, str() as dispatch_id], {**kwargs}, {**embedded}] if not kwargs and not any(embedded.values()):
            if isinstance(ti_id, bool) or not 0 < ti_id <= LARGEST_ID:
                return "it names no task instance"
            if not UUID.fullmatch(dispatch_id) or dispatch_id != celery_id:
                return "it names no dispatch"
            return None
    return "its body is not a task instance ID and a dispatch ID"


def _decoded(encoded: Any) -> Any:
    if not isinstance(encoded, str) or len(encoded) > MAX_BODY_CHARACTERS:
        return None
    try:
        return json.loads(base64.b64decode(encoded, validate=True))
    except (ValueError, RecursionError):
        return None
