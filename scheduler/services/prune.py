"""prune: deletes runs and records that are older than the settings allow, in small batches of each kind."""

import logging
import threading
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from paceline.exceptions import UnreachableError
from scheduler.actions import installation
from scheduler.process.health import VitalThread
from scheduler.services import comparisons
from scheduler.services.service import Result, TimedService
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import deleted_runs
from scheduler.store.tables import comparisons as scratch_comparisons
from scheduler.store.tables import folders, history, tries
from scheduler.store.upkeep import retention
from scheduler.store.upkeep.retention import Batch

log = logging.getLogger("paceline.prune")

#: Seconds between two batches, of some 20 ms each: pruning is not urgent, and keeps up with 10,000 task instances a second.
PAUSE_S = 0.1
#: Seconds to wait for the deletion of the files of one run when the scheduler stops.
STOP_S = 5.0


class Prune(TimedService):
    """Deletes old rows. Every scheduler prunes, and skips rows that another one has locked.

    It remembers the position within each kind; losing it only means checking some rows again. A thread deletes the files of deleted
    runs, of tries that published no tables, and of old snapshots, because that can take long, and ends when all are deleted.
    Another one has reproductions compared, before their tables go.
    """

    name = "prune"

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self._after: dict[str, Any] = {}
        #: The newest of the dead tries that the thread has met, so that one whose files cannot be deleted starts no further thread.
        self._dead_try = 0
        #: The events of runs up to this position are already deleted.
        self._events_until: Any = retention.FIRST_RUN
        self.interval_s = settings.retention.interval
        self._stop = threading.Event()
        self._thread: VitalThread | None = None
        self._comparing: VitalThread | None = None

    def run_once(self, now: datetime) -> Result:
        """Delete one batch of each kind, or of those that the pass before has not read to the end."""
        config = self._settings.retention
        days = {"runs": config.run_days, "events": config.event_days, "audit": config.audit_days}
        days |= dict.fromkeys(retention.KINDS, config.housekeeping_days)
        kinds = [kind for kind in days if self._after.get(kind) is not None] or list(days)
        deleted = {kind: self._delete(kind, now - timedelta(days=days[kind])).deleted for kind in kinds if days[kind]}
        self._delete_files(now)
        self._compare()
        counts = ", ".join(f"{count} {kind}" for kind, count in deleted.items() if count)
        return Result(
            again_in_s=PAUSE_S if any(self._after.get(kind) is not None for kind in deleted) else None,
            log=[(logging.INFO, f"Deleted by age: {counts}")] if counts else [],
        )

    def close(self) -> None:
        self._stop.set()
        for thread in (self._thread, self._comparing):
            if thread is not None:
                thread.join(STOP_S)

    def _delete_files(self, now: datetime) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        if transact(self._engine, deleted_runs.are_due) or self._has_dead_try() or self._has_table(now):
            self._thread = VitalThread(
                target=delete_due, args=(self._engine, self._settings, self._stop), name="run-files", daemon=True
            )
            self._thread.start()

    def _compare(self) -> None:
        tables = self._settings.tables
        if not tables.warehouse or (self._comparing is not None and self._comparing.is_alive()):
            return
        if transact(self._engine, scratch_comparisons.is_due, tables.catalog):
            self._comparing = VitalThread(
                target=comparisons.compare_due, args=(self._engine, self._settings, self._stop), name="comparisons", daemon=True
            )
            self._comparing.start()

    def _has_dead_try(self) -> bool:
        """Whether a try has died whose files have yet to be deleted. At the start of a round, all are tried again."""
        tables = self._settings.tables
        if not tables.warehouse:
            return False
        if not any(self._after.values()):
            self._dead_try = 0
        found = transact(self._engine, tries.dead, self._dead_try, tables.keep_dead_tries, 1)
        self._dead_try = max(found, default=self._dead_try)
        return bool(found)

    def _has_table(self, now: datetime) -> bool:
        """Whether a table may have old snapshots, or files in its folder that nothing needs."""
        tables, days = self._settings.tables, self._settings.retention.housekeeping_days
        if not tables.warehouse:
            return False
        if tables.expire_snapshots and days and transact(self._engine, history.is_due, tables.catalog, now - timedelta(days=days)):
            return True
        return transact(self._engine, folders.is_due, tables.catalog, tables.keep_dead_tries)

    def _delete(self, kind: str, before: datetime) -> Batch:
        if kind == "events":
            batch = transact(self._engine, retention.delete_events, before, self._events_until)
            self._events_until = batch.after or self._events_until
        else:
            try:
                batch = transact(
                    self._engine, retention.delete, kind, before, self._after.get(kind), logs=self._settings.retention.logs,
                    code_url=self._settings.bundles.code_url,
                )  # fmt: skip
            except UnreachableError as error:
                log.warning("%s", error)
                batch = Batch(0, None)
        self._after[kind] = batch.after
        return batch


def delete_due(engine: Engine, settings: Settings, stop: threading.Event) -> None:
    """Delete, run by run, try by try and table by table, the files that nothing needs any more, until none are left or `stop`."""
    try:
        while not stop.is_set() and (run := transact(engine, deleted_runs.take)) is not None:
            installation.delete_files(engine, settings, [run])
        if settings.tables.warehouse and not stop.is_set():
            from scheduler.catalog import expire, gc  # not before: they load pyiceberg

            gc.collect(settings, engine, stop=stop.is_set)
            expire.expire_due(settings, engine, stop.is_set)
    except OperationalError as error:  # another pass continues
        log.warning("%s", database.translate(error))
    except Exception:
        log.exception("Deleting the files of runs and tables failed; another pass continues")
