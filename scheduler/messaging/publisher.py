"""The only publisher of Celery messages. It writes small messages directly to the Redis lists of their queues.

The messages are the same as `Celery.send_task` sends (protocol 2; a test compares both), without the work of Celery and kombu
for each message: one command for one message, one round trip for many. See docs/adr/0012.
"""

import base64
import contextlib
import functools
import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from json import dumps
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import redis
from celery import Celery
from celery.utils.nodenames import anon_nodename
from kombu import Connection, Queue
from kombu.utils.url import parse_ssl_cert_reqs

from scheduler.messaging import broker_keys
from scheduler.messaging.brokers import BROKER_ERRORS, SHARED_TIMEOUT_S, Brokers
from scheduler.messaging.message import VERSION, Message
from scheduler.settings import Settings

TASK_NAME = "paceline.run"
#: The errors of publishing while the broker is unreachable.
PUBLISH_ERRORS = BROKER_ERRORS
#: On Redis, priority 0 is served first and 9 last. kombu keeps a list for each of these steps.
PRIORITY_STEPS = (0, 3, 6, 9)


#: The start of the URL of a Unix socket.
SOCKET = "redis+socket://"


class FailoverConnection(Connection):  # type: ignore[misc]
    """kombu's connection to the first of several URLs that answers, which may be Unix sockets."""

    def switch(self, conn_str: str) -> None:
        """Use another URL. kombu itself knows the scheme of Unix sockets only in the first one."""
        if not conn_str.startswith(SOCKET):
            super().switch(conn_str)
            return
        self.close()
        self.declared_entities.clear()
        self._closed = False
        self._init_params(**self._initial_params | {"hostname": conn_str.removeprefix("redis+")})


def celery_app(settings: Settings) -> Celery:
    """Create the Celery app of a process. Workers add their task to it; all other processes only publish."""
    urls = settings.broker_urls
    # Of several brokers, Celery uses the first that answers, for events and remote control: see workers/celery_worker/intake.py.
    app = Celery("paceline", broker=urls[0] if len(urls) == 1 else list(urls), set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        result_backend=None,
        task_acks_late=False,
        task_default_queue=settings.core.default_queue,
        task_default_delivery_mode=1,
        worker_prefetch_multiplier=1,
        # With these, kombu would run Lua scripts in Redis, which the users of config/redis.conf must not.
        control_queue_expires=None,
        event_queue_expires=None,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=transport_options(urls[0], is_only=len(urls) == 1),
        broker_use_ssl=tls_options(urls[0]),
    )
    if len(urls) > 1:
        app.amqp.Connection = FailoverConnection
    return app


def transport_options(url: str, *, is_only: bool = True) -> dict[str, Any]:
    """Return kombu's options for Redis. Messages need no acknowledgments, because PostgreSQL decides which worker runs a task.

    Keepalive and timeouts detect a lost connection.
    """
    options: dict[str, Any] = {
        "ack_emulation": False,
        "priority_steps": list(PRIORITY_STEPS),
        "sep": ":",
        "queue_order_strategy": "priority",
        "health_check_interval": 10,
        "socket_timeout": 10 if is_only else SHARED_TIMEOUT_S,
        "socket_connect_timeout": 5 if is_only else SHARED_TIMEOUT_S,
    }
    if not url.startswith("redis+socket"):
        options["socket_keepalive"] = True
    return options


def tls_options(url: str) -> dict[str, Any] | None:
    """Return kombu's options for TLS with certificate checks for a rediss:// URL; None for other URLs.

    Without these options, kombu would connect in plain text.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return None
    given: dict[str, Any] = {name: value for name, value in parse_qsl(parts.query) if name.startswith("ssl_")}
    given["ssl_cert_reqs"] = parse_ssl_cert_reqs(given.get("ssl_cert_reqs", "required"))
    if "ssl_check_hostname" in given:
        given["ssl_check_hostname"] = given["ssl_check_hostname"].lower() != "false"
    return given


class Publisher:
    """Publishes messages over one connection to each broker for the life of a process."""

    def __init__(self, settings: Settings, *, timeout_s: float = 5.0) -> None:
        """`timeout_s` is for each of two attempts, see wakeups.Wakeups. With several brokers it is SHARED_TIMEOUT_S at most."""
        several = len(settings.broker_urls) > 1
        self._brokers = Brokers(settings, min(timeout_s, SHARED_TIMEOUT_S) if several else timeout_s)
        self._origin = anon_nodename()

    def publish(self, messages: Sequence[Message]) -> None:
        """Send all messages, or raise one of PUBLISH_ERRORS. After an error some may be sent; sending them again is harmless.

        A message goes to the broker of its queue, or to the next one in the order of the queue that accepts it.
        """
        for part in [messages] if self._brokers.is_single else by_queue(messages):
            waiting: dict[str, list[str]] = {}
            for message in part:
                priority = broker_priority(message.priority_weight)
                waiting.setdefault(_list_of(message.queue, priority), []).append(envelope(message, priority, self._origin))
            if waiting:
                self._brokers.call(functools.partial(_push_repaired, waiting=waiting), part[0].queue)

    def try_publish(self, messages: Sequence[Message]) -> None:
        """Send all messages if the broker answers. Otherwise the rescue service sends them later."""
        with contextlib.suppress(*PUBLISH_ERRORS):
            self.publish(messages)

    def close(self) -> None:
        """Close the connections. The next publish opens new ones."""
        self._brokers.close()


def by_queue(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages of each queue."""
    parts: dict[str, list[Message]] = {}
    for message in messages:
        parts.setdefault(message.queue, []).append(message)
    return list(parts.values())


def _push_repaired(client: redis.Redis, waiting: Mapping[str, Sequence[str]]) -> None:
    """Push the messages, if necessary after moving keys of another type away."""
    try:
        _push(client, waiting)
    except redis.ResponseError as error:
        if not broker_keys.is_wrong_type(error) or not broker_keys.put_aside(client, waiting, "list"):
            raise
        _push(client, waiting)


def _push(client: redis.Redis, waiting: Mapping[str, Sequence[str]]) -> None:
    if len(waiting) == 1:
        client.lpush(*(part for key, texts in waiting.items() for part in (key, *texts)))
        return
    with client.pipeline(transaction=False) as pipe:
        for key, texts in waiting.items():
            pipe.lpush(key, *texts)
        pipe.execute()


def envelope(message: Message, priority: int, origin: str) -> str:
    """Return the message in the format of Celery in Redis. `origin` is the name of the sending process."""
    arguments = [[message.ti_id, message.dispatch_id], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    headers: dict[str, Any] = {
        "lang": "py",
        "task": TASK_NAME,
        "id": message.dispatch_id,
        "shadow": f"{message.dag_id}.{message.task_id}",
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": message.dispatch_id,
        "parent_id": None,
        "argsrepr": message.run_id if message.map_index < 0 else f"{message.run_id} [{message.map_index}]",
        "kwargsrepr": "{}",
        "origin": origin,
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        "message_version": VERSION,
    }
    properties = {
        "correlation_id": message.dispatch_id,
        "reply_to": "",
        "delivery_mode": 1,
        "delivery_info": {"exchange": "", "routing_key": message.queue},
        "priority": priority,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
    return dumps(
        {
            "body": base64.b64encode(dumps(arguments).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )


def broker_priority(priority_weight: int) -> int:
    """Return a coarse priority for Redis (0 first, 9 last). It only preserves the order that PostgreSQL has decided."""
    if priority_weight >= 1000:
        return 0
    if priority_weight >= 100:
        return 3
    return 6 if priority_weight >= 0 else 9


def lengths(brokers: Brokers, names: Sequence[str]) -> dict[str, int]:
    """The number of messages by queue, in all brokers that answer."""
    found = Counter(dict.fromkeys(names, 0))
    for held in brokers.each(lambda client: _lengths(client, names)):
        found.update(held)
    return found


def _lengths(broker: redis.Redis, names: Sequence[str]) -> dict[str, int]:
    with broker.pipeline(transaction=False) as pipe:
        for name in names:
            for key in broker_lists(name):
                pipe.llen(key)
        counts: Any = iter(pipe.execute())
    return {name: sum(next(counts) for _ in broker_lists(name)) for name in names}


def broker_lists(queue: str) -> list[str]:
    """Return the Redis keys of the messages of `queue`, one for each priority step."""
    return [_list_of(queue, step) for step in PRIORITY_STEPS]


def consumed_lists(queues: Iterable[str]) -> dict[str, str]:
    """The Redis keys of the messages of these queues, each with its queue, in the order in which a worker takes from them."""
    return {_list_of(queue, step): queue for step in PRIORITY_STEPS for queue in queues}


def _list_of(queue: str, step: int) -> str:
    return queue if step == 0 else f"{queue}:{step}"


def consumed_queues(names: Sequence[str]) -> list[Queue]:
    """Return queues for a worker to consume. They have no exchange, because messages are written to them directly."""
    return [Queue(name, routing_key=name) for name in names]


#: Messages read at once from a list, and in total. In a list with foreign content beyond that, later messages count as lost.
PAGE, MOST_READ = 1000, 100_000


def dispatch_ids_in_brokers(brokers: Brokers, queues: Collection[str]) -> set[str]:
    """The Celery task IDs of the messages in these queues, in all brokers that answer. A broker that does not has lost its own."""
    return set[str]().union(*brokers.each(lambda client: dispatch_ids_in_broker(client, queues)))


def dispatch_ids_in_broker(broker: redis.Redis, queues: Iterable[str]) -> set[str]:
    """The Celery task IDs of the messages in these queues of one broker."""
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
