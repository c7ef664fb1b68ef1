"""notify: delivers notices. Callbacks run in children and emails are sent in threads, so that the loop waits for neither."""

import json
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from paceline.authoring.connection import FIELDS
from paceline.authoring.connection import Connection as OtherSystem
from paceline.exceptions import NotFoundError, PacelineError
from scheduler.dagfiles.answers import Wanted
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.environments import Environments
from scheduler.dagfiles.parser import CallbackHost
from scheduler.process.health import VitalThread
from scheduler.services.delivery import Batch, Delivery, until_answered
from scheduler.services.service import AT_ONCE, Result, Service
from scheduler.settings import Settings
from scheduler.settings.environment import CONNECTION_PREFIXES
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections, variables
from scheduler.store.secrets.cipher import Cipher
from scheduler.store.upkeep import notices
from scheduler.store.upkeep.notices import Notice
from scheduler.store.worker import xcoms

log = logging.getLogger("paceline.scheduler")

#: Seconds that a stop leaves to a callback or email in progress.
STOP_S = 5.0


class Notify(Service):
    """Delivers notices. Schedulers share the work: each claims notices for a limited time.

    A DAG file occupies at most one thread at a time, and only for a time slice.
    """

    name = "notify"
    pending = notices.PENDING
    wakeups = frozenset({"notify"})

    def __init__(self, engine: Engine, settings: Settings, scheduler_id: Callable[[], str]) -> None:
        super().__init__(engine, settings)
        #: Read in each pass, since a scheduler can get another ID. A claim ends under the ID with which it started.
        self._scheduler_id = scheduler_id
        self._stop = threading.Event()
        count = settings.scheduler.callback_processes
        self._callbacks = [_Worker(f"callbacks-{number}", self._delivery) for number in range(count)]
        self._emails = _Worker("emails", self._delivery)
        self._has_logged_no_host = False

    def run_once(self) -> Result:
        more = self.take() >= self._settings.scheduler.max_callbacks_per_loop and any(not worker.busy for worker in self._callbacks)
        return Result(again_in_s=AT_ONCE if more else None)

    def take(self) -> int:
        """Claim open notices for the threads that are free. It never waits for a callback or an email. Returns their number."""
        if self._stop.is_set():
            return 0
        limit = self._settings.scheduler.max_callbacks_per_loop
        claimed_by = f"{self._scheduler_id()}/{uuid.uuid4().hex[:8]}"
        return self._take_callbacks(claimed_by, limit) + self._take_emails(claimed_by, limit)

    @property
    def busy(self) -> bool:
        """Whether a delivery has not ended."""
        return any(worker.busy for worker in (*self._callbacks, self._emails))

    def close(self) -> None:
        """Give deliveries in progress STOP_S to end, then kill them. The claims of the others are released."""
        self._stop.set()
        deadline = time.monotonic() + STOP_S
        while self.busy and time.monotonic() < deadline:
            time.sleep(0.02)
        for worker in (*self._callbacks, self._emails):
            worker.close()

    def _take_callbacks(self, claimed_by: str, limit: int) -> int:
        free = [worker for worker in self._callbacks if not worker.busy]
        if not free:
            return 0
        busy = {place for worker in self._callbacks for place in worker.places}
        slow = {place for worker in self._callbacks for place in worker.take_slow()}
        lease_s = free[0].delivery.lease_s
        claimed: list[Notice] = []
        # Files whose time slice has just ended wait for one pass, if other files have notices.
        for without in [busy | slow, busy] if slow else [busy]:
            claimed = claimed or transact(
                self._engine, notices.claim, claimed_by, emails=False, lease_s=lease_s, limit=limit, without=without
            )
        numbers = {place: number for number, place in enumerate(dict.fromkeys(notice.place for notice in claimed))}
        batches: dict[tuple[str, str, int | None], list[Notice]] = {}
        for notice in claimed:
            batches.setdefault((notice.place, notice.file, notice.bundle_version), []).append(notice)
        for (place, file, version), of_file in batches.items():
            free[numbers[place] % len(free)].put(Batch(claimed_by, file, of_file, bundle_version=version, place=place))
        return len(claimed)

    def _take_emails(self, claimed_by: str, limit: int) -> int:
        if self._emails.busy:
            return 0
        lease_s = self._emails.delivery.lease_s
        claimed = transact(self._engine, notices.claim, claimed_by, emails=True, lease_s=lease_s, limit=limit)
        if claimed and self._settings.smtp.host is None and not self._has_logged_no_host:
            self._has_logged_no_host = True
            log.error("Emails are not sent: smtp.host is not set. `paceline notices list --failed` lists them.")
        if claimed:
            self._emails.put(Batch(claimed_by, None, claimed))
        return len(claimed)

    def _delivery(self) -> Delivery:
        host = CallbackHost(self._settings, CallbackReads(self._engine, self._settings))
        cache = BundleCache.of(self._settings, StoredContents.over(until_answered(self._engine, self._stop), self._settings))
        return Delivery(
            engine=self._engine, settings=self._settings, host=host, stop=self._stop, cache=cache,
            environments=Environments.of(self._settings),
        )  # fmt: skip


class _Worker:
    """A thread that delivers one batch after the other. It starts with the first batch."""

    def __init__(self, name: str, create_delivery: Callable[[], Delivery]) -> None:
        self.delivery = create_delivery()
        self._name = name
        #: None ends the thread.
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._places: list[str] = []
        self._slow: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self._places)

    @property
    def places(self) -> set[str]:
        """The places of the DAG files of its current and waiting batches."""
        with self._lock:
            return set(self._places)

    def take_slow(self) -> set[str]:
        """The places whose time slice has ended since the last call, with callbacks left."""
        with self._lock:
            slow, self._slow = self._slow, set()
            return slow

    def put(self, batch: Batch) -> None:
        with self._lock:
            self._places.append(batch.place)
        self._batches.put(batch)
        if self._thread is None:
            self._thread = VitalThread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the child, the thread, and the process that forks the children."""
        if self._thread is not None:
            self.delivery.host.interrupt()
            self._batches.put(None)
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._deliver(batch)
        self.delivery.host.kill()

    def _deliver(self, batch: Batch) -> None:
        try:
            if not self.delivery.deliver(batch) and batch.file is not None:
                with self._lock:
                    self._slow.add(batch.place)
        except OperationalError as error:  # the scheduler stops; the claims will expire
            log.warning("%s", database.translate(error))
        except Exception:
            log.exception("The delivery of %d notice(s) failed; it is repeated when their claims have expired", len(batch.notices))
        finally:
            with self._lock:
                self._places.remove(batch.place)


#: Prior runs end at the run of the callback. This counts only if that has been deleted.
LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CallbackReads:
    """Reads one value after the other, as `{"value": ...}`, or as `{"error": ...}` if it cannot be read."""

    engine: Engine
    settings: Settings

    def __call__(self, wanted: Wanted) -> dict[str, Any]:
        try:
            return {
                "value": {"variable": self._variable, "connection": self._connection, "xcoms": self._xcoms}[wanted.wanted](wanted)
            }
        except PacelineError as error:
            return {"error": str(error)}
        except SQLAlchemyError:
            return {"error": f"The {wanted.wanted} {wanted.name!r} cannot be read: the database does not answer."}

    def _variable(self, wanted: Wanted) -> str | None:
        try:
            row = transact(self.engine, variables.variable, wanted.name, Cipher.of(self.settings, make=False))
        except NotFoundError:
            return None
        return str(row["value"])

    def _connection(self, wanted: Wanted) -> dict[str, Any] | None:
        names = (f"{prefix}{wanted.name.upper()}" for prefix in CONNECTION_PREFIXES)
        text = next((os.environ[name] for name in names if name in os.environ), None)
        try:
            if text is not None:
                found = OtherSystem.parse(wanted.name, text)
            else:
                found = transact(self.engine, connections.connection, wanted.name, Cipher.of(self.settings, make=False))
        except NotFoundError:
            return None
        return {name: getattr(found, name) for name in FIELDS}

    def _xcoms(self, wanted: Wanted) -> list[tuple[int, str]]:
        source = xcoms.Source(wanted.dag_id, wanted.run_id, wanted.name, wanted.prior, LATEST)
        values = asdict(source) | {"key": wanted.key, "index": wanted.map_index}
        return [(index, json.dumps(value)) for index, value in transact(self.engine, xcoms.of_task, values)]
