"""Takes messages from several brokers, each with a thread and a connection of its own. See docs/adr/0097.

Celery consumes from one broker, and its event loop waits while that one is away. So with several brokers, Celery's connection
carries only events and remote control, through the first broker that answers, and it gets the messages of tasks from these
threads. With one broker, nothing here runs.

INVARIANT: a worker holds at most as many messages as it has places. A message that arrives without a free place goes back.
"""

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import redis
from celery.worker import state as celery_state

from scheduler.messaging import broker_keys
from scheduler.messaging.brokers import BROKER_ERRORS, Broker, Brokers, used
from scheduler.messaging.publisher import consumed_lists
from scheduler.process.health import VitalThread
from scheduler.settings import Settings
from workers.celery_worker.message_filter import refused
from workers.process.logs import worker_log

#: Seconds for which a broker holds a request for a message, and after which a request without an answer has failed.
BLOCK_S, TIMEOUT_S = 2.0, 5.0
#: Seconds between two attempts to reach a broker.
RETRY_S = 1.0
#: Seconds for which a thread waits for a free place before it looks whether the worker ends.
LOOK_S = 1.0


class Places:
    """The places of a worker for messages: its pool processes, less the messages that it has or that threads ask for."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._changed = threading.Condition()
        #: The places kept by threads that ask for a message, and by messages on their way to the event loop.
        self._kept = 0
        self._closed = False

    def _free(self) -> int:
        return 0 if self._closed else self._concurrency - len(celery_state.reserved_requests) - self._kept

    def wait(self) -> bool:
        """Keep a free place, if one becomes free in time. Threads get them in the order in which they wait."""
        with self._changed:
            if self._free() <= 0:
                self._changed.wait(LOOK_S)
            return self._keep()

    def keep(self) -> bool:
        """Keep a place if one is free."""
        with self._changed:
            return self._keep()

    def _keep(self) -> bool:
        if self._free() <= 0:
            return False
        self._kept += 1
        return True

    def give_back(self) -> None:
        """Free a kept place. If a message took it, Celery counts that one now."""
        with self._changed:
            self._kept -= 1
            self._changed.notify()

    def look(self) -> None:
        """Wake a thread that waits, if a task has ended. The event loop calls it in each round."""
        with self._changed:
            if (free := self._free()) > 0:
                self._changed.notify(free)

    def while_open(self, pass_on: Callable[[], object]) -> bool:
        """Call `pass_on`, unless the worker stops. Once it does, no message comes any more."""
        with self._changed:
            if not self._closed:
                pass_on()
            return not self._closed

    def close(self) -> None:
        """Have no free place any more: the worker stops."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Intake:
    """The threads, and the messages that they have for the event loop."""

    def __init__(self, settings: Settings, queues: Sequence[str], concurrency: int) -> None:
        self.places = Places(concurrency)
        self._brokers = Brokers(settings, TIMEOUT_S)
        self._lists = consumed_lists(queues)
        self._arrived: deque[tuple[str, bytes]] = deque()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()

    def attach(self, hub: Any, consumer: Any) -> None:
        """Give the messages to this consumer from now on, which takes none itself. Celery calls it for each of its connections."""
        consumer.task_consumer.channel.qos.can_consume = _never
        hub.on_tick.add(self.places.look)
        hub.add_reader(self._reader, lambda: self.deliver(consumer))
        if not self._threads:
            self._threads = [VitalThread(target=self._take, args=(broker,), name=f"messages of {broker.name}", daemon=True)
                             for broker in self._brokers.all]  # fmt: skip
            for thread in self._threads:
                thread.start()

    def deliver(self, consumer: Any) -> None:
        """Give the messages that arrived to Celery, as its own connection would. The event loop calls it."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 1 << 16)
        while self._arrived:
            queue, item = self._arrived.popleft()
            try:
                consumer.task_consumer.channel.connection._deliver(json.loads(item), queue)
            except (ValueError, RecursionError) as error:
                refused.log("refused a message: it is not JSON (%s)", type(error).__name__)
            finally:
                self.places.give_back()

    def stop(self, consumer: Any) -> None:
        """Take no more messages. Those that have arrived are still delivered. The event loop calls it."""
        self.places.close()
        self._ended.set()
        self.deliver(consumer)

    def _take(self, broker: Broker) -> None:
        while not self._ended.is_set():
            try:
                if broker.problem is not None:
                    used(broker, lambda client: client.ping())
                self._take_next(broker)
            except BROKER_ERRORS as error:
                if broker_keys.is_wrong_type(error):
                    self._repair(broker, error)
                self._ended.wait(RETRY_S)
            except Exception:
                worker_log.exception("the messages of the broker %s cannot be taken; the next attempt follows", broker.name)
                self._ended.wait(RETRY_S)
        broker.client.close()

    def _take_next(self, broker: Broker) -> None:
        """Pass a message on that waits in the broker; else wait there for one, together with the threads of other brokers."""
        if not self.places.wait():
            return
        try:
            found = used(broker, self._pop)
        except BROKER_ERRORS:
            self.places.give_back()
            raise
        if found is None:
            self.places.give_back()
            found = used(broker, self._wait)
            if found is None:
                return
            if not self.places.keep():
                # Another broker had a message for the last place.
                used(broker, lambda client: client.lpush(*found))
                return
        key, item = found
        if self.places.while_open(lambda: self._arrived.append((self._lists[key], item))):
            with contextlib.suppress(BlockingIOError):  # it is full, so the event loop is awake
                os.write(self._writer, b"x")
        else:
            used(broker, lambda client: client.lpush(key, item))

    def _pop(self, client: redis.Redis) -> tuple[str, bytes] | None:
        """The next message, if one waits: in a transaction, BRPOP does not block."""
        with client.pipeline() as pipe:
            pipe.brpop(list(self._lists), timeout=1)
            return _decoded(pipe.execute()[0])

    def _wait(self, client: redis.Redis) -> tuple[str, bytes] | None:
        return _decoded(client.brpop(list(self._lists), timeout=BLOCK_S))

    def _repair(self, broker: Broker, error: BaseException) -> None:
        if not broker_keys.put_aside(broker.client, self._lists, "list"):
            refused.log("no message can be consumed from %s: a Redis key is not a list (%s)", broker.name, error)


def _decoded(answer: Any) -> tuple[str, bytes] | None:
    return None if answer is None else (answer[0].decode(), answer[1])


def _never() -> bool:
    return False
