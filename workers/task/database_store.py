"""The store of tries in PostgreSQL. Each call is repeated until the database answers."""

import contextlib
import fcntl
import itertools
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg2
from tenacity import wait_random_exponential

from paceline.authoring.asset import Asset, AssetEvent
from paceline.authoring.triggers import Counts, Target
from scheduler.process import fault_points, retries
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.dags import assets
from scheduler.store.db import sqlstates
from scheduler.store.worker import claims, dispatches, external_runs, xcoms
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Refused, Reported
from scheduler.store.worker.hot_path import HotPath
from workers.process.logs import worker_log
from workers.process.secrets_backend import StoreBackend
from workers.task import triggered_runs
from workers.task.follow import Follower
from workers.task.store import StoredStates

if TYPE_CHECKING:
    from workers.spark.applications.jobs import Jobs


#: The longest wait for one holder. One that is stopped, or cut off from the database, must not delay others for longer.
LONGEST_S = 5.0
#: Seconds between two attempts to get the lock: at first, and at most. The pauses grow because many may wait on few processors.
PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.05
#: Bytes of the file: the first is locked by the process that has its turn, the second is shared by those that wait for theirs.
TURN_AT, WAITING_AT = 0, 1


class ReportLock:
    """Create it in the worker before it forks its pool processes. The kernel releases the lock if its holder dies."""

    def __init__(self) -> None:
        # A POSIX lock belongs to a process, so all pool processes can use one inherited file.
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("reports")
        else:
            self._file, path = tempfile.mkstemp()
            Path(path).unlink()
        #: The monotonic time at which the current or the last turn began, shared by all pool processes.
        self._began_at = mmap.mmap(-1, struct.calcsize("d"))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock, or continue without it if one holder keeps it for LONGEST_S."""
        held = self._acquire()
        try:
            yield
        finally:
            if held:
                self._unlock(TURN_AT)

    def others_wait(self) -> bool:
        """Whether another process waits for its turn now."""
        if self._lock(fcntl.LOCK_EX, WAITING_AT) is False:
            return True
        self._unlock(WAITING_AT)
        return False

    def _acquire(self) -> bool:
        """Whether this process holds the lock now."""
        asked_at, pause_s, waiting = time.monotonic(), PAUSE_S, False
        try:
            # None: user code has closed the file.
            while (held := self._lock(fcntl.LOCK_EX, TURN_AT)) is False:
                # In a burst, a slow database serves one holder after another: each new turn allows another LONGEST_S.
                if time.monotonic() >= max(asked_at, *struct.unpack("d", self._began_at[:])) + LONGEST_S:
                    break
                # It fails while `others_wait` looks, so it is repeated.
                waiting = waiting or bool(self._lock(fcntl.LOCK_SH, WAITING_AT))
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
        finally:
            if waiting:
                self._unlock(WAITING_AT)
        if held:
            self._began_at[:] = struct.pack("d", time.monotonic())
        return bool(held)

    def _lock(self, kind: int, at: int) -> bool | None:
        """Whether this process has locked that byte; None if it cannot be locked at all."""
        try:
            fcntl.lockf(self._file, kind | fcntl.LOCK_NB, 1, at)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            return None
        return True

    def _unlock(self, at: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, at)


R = TypeVar("R")

#: Pauses of 0.05 to 0.1 s, then up to twice as long each time, and at most 5 s.
AGAIN = retries.repeated(sqlstates.is_passing, pause_s=wait_random_exponential(0.1, max=5, min=0.05))


@dataclass(slots=True)
class DatabaseStore:
    """The reads and writes of one pool process, over its own connection. See workers/task/store.py."""

    settings: Settings
    hot: HotPath
    follower: Follower
    over: xcoms.MappedOver = field(default_factory=xcoms.MappedOver)
    lock: ReportLock = field(default_factory=ReportLock)

    def claim(self, ti_id: int, dispatch_id: str, worker_id: str, is_ours: Callable[[], bool] = lambda: True) -> Claim | None:
        self.hot.worker_id = worker_id
        attempts = itertools.count()
        return self.patient(lambda: self._claim(ti_id, dispatch_id, next(attempts) > 0, is_ours))

    def _claim(self, ti_id: int, dispatch_id: str, is_repeated: bool, is_ours: Callable[[], bool]) -> Claim | None:
        """Claim, in turn only in a burst of reports and after a failed attempt: turns would delay the start of quick tasks."""
        if self.hot.is_open or not (self.hot.is_contended or self.lock.others_wait()):
            claim = self.hot.claim(ti_id, dispatch_id, is_repeated)
        else:
            with self._turn():
                claim = self.hot.claim(ti_id, dispatch_id, is_repeated)
                if claim is None and self.lock.others_wait():
                    self.hot.close_for_others()
        # After an attempt that was not stored, another process of this worker may have received the message again, and claimed it.
        return claim if not is_repeated or is_ours() else None

    def dag(self, version_id: int) -> SerializedDag:
        return self.patient(lambda: self.hot.dag(version_id))

    def report(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None = None) -> Reported | Refused:
        """Store the ending. If the report is refused because the task was cleared or marked, store the requested state."""
        fault_points.point("report.before")
        answer = self.patient(lambda: self._report(claim, ending, next_in_place))
        if not answer.is_stored and self.patient(lambda: dispatches.claim_again(self.hot, claim)):
            # The heartbeat confirms only tasks in user code. Without this, the task would run a second time.
            worker_log.warning("dispatch %s was claimed again: a crash of PostgreSQL undid the claim", claim.dispatch_id)
            again = None if next_in_place is None else next_in_place.asked_again()
            answer = self.patient(lambda: self.follower.report(claim, ending, again))
        if not answer.is_stored and self.patient(lambda: self.follower.end_as_requested(claim)):
            worker_log.info("stopped %s.%s (run %s) as asked", claim.dag_id, claim.task_id, claim.run_id)
        elif not answer.is_stored:
            worker_log.warning(
                "report %s of %s.%s (run %s, try %d) refused: dispatch %s is no longer the current one",
                ending.state.value, claim.dag_id, claim.task_id, claim.run_id, claim.try_number, claim.dispatch_id,
            )  # fmt: skip
        return answer

    def _report(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None) -> Reported | Refused:
        """Report; if the connection has to be opened for it, wait for the reports of other pool processes that do the same.

        An attempt after an error opens it again, so it gets here too.
        """
        if self.hot.is_open:
            return self.follower.report(claim, ending, next_in_place)
        with self._turn():
            answer = self.follower.report(claim, ending, None if next_in_place is None else next_in_place.asked_again())
            if answer.continues is None and self.lock.others_wait():
                # Each of them would keep its connection for a while.
                self.hot.close_for_others()
            return answer

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """The turn of this pool process to open a connection. If others wait for theirs, it stays open only briefly."""
        with self.lock.turn():
            self.hot.is_contended = self.hot.is_contended or self.lock.others_wait()
            yield

    def clear_xcoms(self, claim: Claim) -> None:
        self.patient(lambda: xcoms.clear(self.hot, claim))

    def push_xcom(self, claim: Claim, key: str, json_text: str) -> None:
        self.patient(lambda: xcoms.push(self.hot, claim, key, json_text))

    def pull_xcom(self, claim: Claim, task_id: str, key: str, map_index: int, default: Any) -> Any:
        return self.patient(lambda: xcoms.pull(self.hot, claim.dag_run_id, task_id, key, map_index, default=default))

    def pull_xcoms(self, claim: Claim, task_no: int, key: str) -> list[Any]:
        number = self._number(claim, task_no)
        return self.patient(lambda: xcoms.of_instances(self.hot, claim.dag_run_id, number, key))

    def pull_other(self, claim: Claim, source: xcoms.Source, key: str, map_index: int | None) -> list[tuple[int, Any]]:
        return self.patient(lambda: xcoms.other(self.hot, source, key, map_index))

    def count_entries(self, claim: Claim, task_no: int, key: str, *, is_mapped: bool) -> int | None:
        run, number = claim.dag_run_id, self._number(claim, task_no)
        return self.patient(lambda: xcoms.length(self.hot, run, number, key, is_mapped=is_mapped, over=self.over))

    def entry(self, claim: Claim, task_no: int, key: str, place: int, *, is_mapped: bool) -> Sequence[Any]:
        run, number = claim.dag_run_id, self._number(claim, task_no)
        return self.patient(lambda: xcoms.entry(self.hot, run, number, key, place, is_mapped=is_mapped, over=self.over))

    def _number(self, claim: Claim, task_no: int) -> xcoms.Number:
        """The task that has this number in the version of the claim."""
        return xcoms.Number(claim.dag_run_id, task_no, self.dag(claim.version_id).tasks[task_no].task_id)

    def label(self, claim: Claim, text: str) -> None:
        self.patient(lambda: dispatches.label(self.hot, claim, text))

    def count_instances(self, claim: Claim) -> int:
        place = ([0], [claim.dag_run_id], [claim.task_no], [claim.task_id])
        return sum(count for _, _, count in self.patient(lambda: self.hot.read(external_runs.INSTANCES, place)))

    def now(self) -> datetime:
        return self.patient(self.hot.now)

    def count_states(self, targets: Sequence[Target]) -> list[Counts]:
        return self.patient(lambda: external_runs.states(self.hot, self.hot.dag, targets))

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        return self.patient(lambda: external_runs.describe(self.hot, self.hot.dag, dag_id))

    def is_paused(self, dag_id: str) -> bool:
        return bool(self.patient(lambda: self.hot.value(external_runs.PAUSED, (dag_id,))))

    def trigger_run(self, claim: Claim, dag_id: str, **options: Any) -> str:
        return triggered_runs.trigger(self.settings, dag_id, claim=claim, now=self.now, patient=self.patient, **options)

    def first_start(self, claim: Claim, first_try: int) -> datetime:
        return self.patient(lambda: claims.first_start(self.hot, claim, first_try))

    def previous_success(self, claim: Claim) -> Sequence[datetime | None] | None:
        return self.patient(lambda: external_runs.previous_success(self.hot, claim.dag_run_id))

    def secrets(self, claim: Claim) -> StoreBackend:
        return StoreBackend(settings=self.settings, claim=claim, hot=self.hot, patient=self.patient)

    def events(self, claim: Claim) -> "StoredEvents":
        return StoredEvents(claim, self)

    def state_backend(self, claim: Claim) -> StoredStates:
        return StoredStates(self.settings.core, claim, self.hot, self.patient)

    def jobs(self, claim: Claim) -> "Jobs":
        from workers.spark.applications.jobs import StoredJobs

        return StoredJobs(self.settings, claim, self.hot, self.patient)

    def patient(self, ask: Callable[[], R]) -> R:
        """Return `ask()`. It is called again over a new connection while the database is away, or accepts no writes."""
        try:
            return ask()  # not by AGAIN, which would add 3 % to the time of a short task
        except psycopg2.Error as error:
            if not sqlstates.is_passing(error):
                raise
            worker_log.warning("PostgreSQL does not answer (%s); trying until it does", str(error).strip())
        return AGAIN.copy(before=lambda _: self.hot.close())(ask)


@dataclass(frozen=True, slots=True)
class StoredEvents:
    """Asset events, which are read when user code accesses them."""

    claim: Claim
    store: DatabaseStore

    def of_run(self) -> list[AssetEvent]:
        if self.claim.run_type != "asset_triggered":
            return []
        return self.store.patient(lambda: assets.events_of_run(self.store.hot, self.claim.dag_run_id))

    def of_assets(self, uris: Sequence[str]) -> list[AssetEvent]:
        return self.store.patient(lambda: assets.events_of_assets(self.store.hot, uris))

    def named(self, name: str) -> Asset:
        return self.store.patient(lambda: assets.named(self.store.hot, name))
