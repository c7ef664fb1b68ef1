"""notify: have callbacks run in children and mails sent, in threads, so that the loop waits for neither."""

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from tenacity import stop_when_event_set

from scheduler.dagfiles.callback_host import CallbackHost
from scheduler.process import retries
from scheduler.services.delivery import Batch, Delivery
from scheduler.services.service import AT_ONCE, Result, Service
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.upkeep import notices
from scheduler.store.upkeep.notices import Notice

log = logging.getLogger("paceline.scheduler")

R = TypeVar("R")
#: How long a stop lets the callback or mail in progress go on.
STOP_S = 5.0
PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Notified:
    """How many notices were taken on, and whether more may wait that could be."""

    taken: int
    more: bool


class Notify(Service):
    """Any number of schedulers tell at once: each notice is claimed for a while.

    One DAG file holds one thread at most, and makes way for others after a moment.
    """

    name = "notify"
    pending = notices.PENDING
    wakeups = frozenset({"notify"})

    def __init__(self, engine: Engine, settings: Settings, scheduler_id: Callable[[], str]) -> None:
        self._engine = engine
        self._settings = settings
        #: Read in each pass, since a scheduler may get another id. A claim ends under the id that it was made with.
        self._scheduler_id = scheduler_id
        self._stop = threading.Event()
        self._callbacks = [_Lane(f"callbacks-{number}", self._teller) for number in range(settings.scheduler.callback_processes)]
        self._mails = _Lane("mails", self._teller)
        self._said_no_host = False
        self.interval_s = settings.scheduler.scheduler_idle_sleep_time

    def run_once(self) -> Result:
        return Result(again_in_s=AT_ONCE if self.take().more else None)

    def take(self) -> Notified:
        """Take on what is open, as far as there is room; never waits for a callback or a mail."""
        if self._stop.is_set():
            return Notified(0, more=False)
        limit = self._settings.scheduler.max_callbacks_per_loop
        claimed_by = f"{self._scheduler_id()}/{uuid.uuid4().hex[:8]}"
        taken = self._take_callbacks(claimed_by, limit) + self._take_mails(claimed_by, limit)
        return Notified(taken, more=taken >= limit and any(not lane.busy for lane in self._callbacks))

    @property
    def busy(self) -> bool:
        """Whether anything taken on has not ended."""
        return any(lane.busy for lane in (*self._callbacks, self._mails))

    def close(self) -> None:
        """Let what is in progress end for a moment, then kill it; what has not ended is given back."""
        self._stop.set()
        deadline = time.monotonic() + STOP_S
        lanes = (*self._callbacks, self._mails)
        while self.busy and time.monotonic() < deadline:
            time.sleep(0.02)
        for lane in lanes:
            lane.close()

    def _take_callbacks(self, claimed_by: str, limit: int) -> int:
        free = [lane for lane in self._callbacks if not lane.busy]
        if not free:
            return 0
        files = {file for lane in self._callbacks for file in lane.files}
        slow = {file for lane in self._callbacks for file in lane.take_slow()}
        lease_s = free[0].teller.lease_s
        found: list[Notice] = []
        # Files that made way a moment ago wait this once, if any other has something.
        for without in [files | slow, files] if slow else [files]:
            found = found or notices.claim_callbacks(self._engine, claimed_by, lease_s=lease_s, limit=limit, without_files=without)
        by_file: dict[str, list[Notice]] = {}
        for notice in found:
            by_file.setdefault(notice.file, []).append(notice)
        for number, (file, some) in enumerate(by_file.items()):
            free[number % len(free)].callbacks(Batch(claimed_by, file, some))
        return len(found)

    def _take_mails(self, claimed_by: str, limit: int) -> int:
        if self._mails.busy:
            return 0
        lease_s = self._mails.teller.lease_s
        found = notices.claim_mails(self._engine, claimed_by, lease_s=lease_s, limit=limit)
        if found and self._settings.smtp.host is None and not self._said_no_host:
            self._said_no_host = True
            log.error("Mails are not sent: smtp.host is not set. `paceline notices list --failed` shows them.")
        if found:
            self._mails.mails(Batch(claimed_by, None, found))
        return len(found)

    def _teller(self) -> Delivery:
        return Delivery(
            engine=self._engine,
            settings=self._settings,
            host=CallbackHost(self._settings),
            patient=self._patient,
            stopping=self._stop.is_set,
        )

    def _patient(self, ask: Callable[[], R]) -> R:
        """`ask()`, again until the database answers: what has been told must not be told again for want of a note."""
        return retries.repeated(
            lambda error: isinstance(error, OperationalError),
            pause_s=PAUSE_S,
            stop=stop_when_event_set(self._stop),
            sleep=self._stop.wait,
            failed=lambda error, _: log.warning("%s", database.translate(cast(OperationalError, error))),
        )(ask)


class _Lane:
    """A thread, started when it is first needed, that tells one batch after the other."""

    def __init__(self, name: str, make_teller: Callable[[], Delivery]) -> None:
        self.teller = make_teller()
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._files: list[str | None] = []
        self._slow: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self._files)

    @property
    def files(self) -> set[str]:
        """DAG files whose callbacks it runs or will run."""
        with self._lock:
            return {file for file in self._files if file is not None}

    def take_slow(self) -> set[str]:
        """Files that took so long that the rest of their callbacks was given back, since the last call."""
        with self._lock:
            slow, self._slow = self._slow, set()
            return slow

    def callbacks(self, batch: Batch) -> None:
        self._put(batch, self.teller.callbacks)

    def mails(self, batch: Batch) -> None:
        self._put(batch, self.teller.mails)

    def close(self) -> None:
        """End the child, the thread, and the process the children come from."""
        if self._thread is not None:
            self.teller.host.interrupt()
            self._work.put(None)
            self._thread.join(STOP_S)

    def _put(self, batch: Batch, tell: Callable[[Batch], bool]) -> None:
        with self._lock:
            self._files.append(batch.file)
        self._work.put(lambda: self._tell(batch, tell))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        self.teller.host.kill()

    def _tell(self, batch: Batch, tell: Callable[[Batch], bool]) -> None:
        try:
            if not tell(batch) and batch.file is not None:
                with self._lock:
                    self._slow.add(batch.file)
        except OperationalError as error:  # the scheduler stops; the claims lapse by themselves
            log.warning("%s", database.translate(error))
        except Exception:
            log.exception("Telling %d notice(s) failed; they are told again when their claims have lapsed", len(batch.notices))
        finally:
            with self._lock:
                self._files.remove(batch.file)
