"""Follows the events of the installation, in a thread of one scheduler at a time, and shows them to its observers.

So neither a worker nor the loop of a scheduler does anything for the metrics of a task. See docs/adr/0035.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.exceptions import UnreadableVersionError
from paceline.states import STARTED, SUSPENDED
from scheduler.messaging.brokers import BROKER_ERRORS, Brokers
from scheduler.process.health import VitalThread
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db import database
from scheduler.store.read import event_feed
from scheduler.store.read.event_feed import Event, EventFeed, Started


@dataclass(frozen=True, slots=True)
class Batch:
    """New events in the order of their time, and the tries whose start is new. `behind_s` is how old the newest event may be."""

    connection: Connection
    versions: Versions
    events: Sequence[Event]
    starts: Sequence[Started | Event]
    behind_s: float

    def dag(self, version_id: int | None) -> SerializedDag | None:
        """A version of a DAG; None if it cannot be read any more."""
        if version_id is None:
            return None
        try:
            return self.versions.dag(self.connection, version_id)
        except UnreadableVersionError:
            return None

    def task(self, event: Started | Event) -> SerializedTask | None:
        """The task of an event; None if its version cannot be read."""
        dag = self.dag(event.version_id)
        if dag is None or event.task_no is None or event.task_no >= len(dag.tasks):
            return None
        return dag.tasks[event.task_no]


class Observer:
    """The base of observers, which receive each batch in the thread of the follower."""

    def observe_batch(self, batch: Batch) -> None:
        """Use a batch. This may query the connection, which reads only, but it may not wait for another server."""
        raise NotImplementedError

    def flush(self) -> None:
        """Called about once a second: send waiting data, without waiting for long."""

    def reader_left(self) -> None:
        """Called when another scheduler may read the next batches."""

    def close(self) -> None:
        """Called at the end of the process."""


def ends_try(event: Event) -> bool:
    """Whether a worker had the task instance until this event, and its try does not continue."""
    return event.from_state in STARTED and event.to_state not in STARTED | SUSPENDED


def index_of(event: Started | Event) -> int:
    """The map index; -1 if the task is not mapped."""
    return -1 if event.map_index is None else event.map_index


log = logging.getLogger("paceline.telemetry")

#: The position of the reader, for the next one.
POSITION_KEY = "paceline:telemetry:position"
#: The largest share of its time for which the follower works, whatever the number of events.
SHARE = 0.25
#: Seconds between two flushes of the observers.
FLUSH_S = 1.0
STOP_S = 5.0
#: Seconds in which a claim becomes visible after the start that it stores.
VISIBLE_S = 2.0


class Follower(VitalThread):
    """Reads events every `metrics.interval` while no other scheduler does."""

    def __init__(self, settings: Settings, observers: Sequence[Observer]) -> None:
        super().__init__(name="telemetry", daemon=True)
        self._interval_s = settings.metrics.interval
        self._observers = observers
        self._engine: Engine = database.create(settings, application="paceline telemetry", pool_size=0)
        #: Only the reader keeps it, because its lock ends with it.
        self._connection: Connection | None = None
        self._brokers = Brokers(settings)
        self._versions = Versions()
        self._feed = EventFeed()
        #: Tries that were seen to start, by task instance and start. Those before `_counted_until` were seen before.
        self._counted: set[tuple[int, float]] = set()
        self._counted_until = 0.0
        self._ended = threading.Event()
        self._away = False

    def end(self) -> None:
        """End the thread, after the observers have sent their waiting data."""
        self._ended.set()
        self.join(STOP_S)

    def work(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(min(FLUSH_S, max(due - time.monotonic(), 0.05))):
            if time.monotonic() >= due:
                due = time.monotonic() + self._iteration()
            self._flush()
        self._iteration()
        self._flush()
        self._leave()
        self._brokers.close()
        for observer in self._observers:
            observer.close()

    def _flush(self) -> None:
        for observer in self._observers:
            try:
                observer.flush()
            except Exception:  # the others must still send
                log.exception("%s could not send its data", type(observer).__name__)

    def _iteration(self) -> float:
        """Read the new events. Returns the seconds until the next iteration."""
        started = time.monotonic()
        try:
            while self.read_once() and not self._ended.is_set():
                pass
        except DBAPIError as error:
            if not self._away:
                log.warning("No metrics of events while PostgreSQL does not answer: %s", str(error.orig).strip())
            self._away = True
            self._leave()
        except Exception:
            log.exception("Events could not be read; the next attempt follows")
            self._leave()
        else:
            self._away = False
        return max(self._interval_s, (time.monotonic() - started) / SHARE)

    def read_once(self) -> bool:
        """Show a batch of events to the observers, if this is the reader. Returns whether there is more to read at once."""
        connection = self._connection or self._become_reader()
        if connection is None:
            return False
        feed, since = self._feed, self._feed.until
        events = feed.read(connection)
        starts = self._starts(events, event_feed.running(connection), since)
        batch = Batch(connection, self._versions, events, starts, behind_s=max(feed.now - feed.until, 0.0))
        for observer in self._observers:
            try:
                observer.observe_batch(batch)
            except DBAPIError:
                raise
            except Exception:  # the others must not miss the batch
                log.exception("%s does not have some events", type(observer).__name__)
        connection.rollback()
        position = json.dumps({"until": feed.until})
        with contextlib.suppress(*BROKER_ERRORS):
            self._brokers.each(lambda client: client.set(POSITION_KEY, position, ex=int(event_feed.OLDEST_S)))
        return feed.is_behind

    def _become_reader(self) -> Connection | None:
        connection = self._engine.connect()
        if not event_feed.become_reader(connection):
            connection.close()
            return None
        connection.commit()
        self._connection, self._feed = connection, self._position()
        self._counted_until = self._feed.until
        return connection

    def _leave(self) -> None:
        """Let another scheduler become the reader."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(DBAPIError):
                connection.close()
            for observer in self._observers:
                observer.reader_left()

    def _starts(self, events: Sequence[Event], running: Sequence[Started], since: float) -> list[Started | Event]:
        """The tries that started, each once: while they run, or else with the event that ends them."""
        until = self._feed.until
        # The first batch only finds the present.
        self._counted_until = self._counted_until or until
        after = max(self._counted_until, since - VISIBLE_S)
        starts: list[Started | Event] = []
        candidates: list[Started | Event] = [*running, *events]
        for event in candidates:
            if event.task_instance_id is None or event.started_at is None or event.started_at <= after:
                continue
            key = event.task_instance_id, event.started_at
            if key not in self._counted:
                self._counted.add(key)
                starts.append(event)
        current = {started.task_instance_id for started in running}
        self._counted = {(ti, at) for ti, at in self._counted if ti in current or at > until - 2 * VISIBLE_S}
        return starts

    def _position(self) -> EventFeed:
        """The position of the last reader if Redis has it, else the present."""
        with contextlib.suppress(*BROKER_ERRORS, ValueError, RecursionError, TypeError, KeyError):
            text: object = self._brokers.call(lambda client: client.get(POSITION_KEY))
            if isinstance(text, bytes):
                until = float(json.loads(text)["until"])
                return EventFeed(since=until, until=until)
        return EventFeed()
