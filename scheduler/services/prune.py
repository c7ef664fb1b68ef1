"""prune: deletes runs and records that are older than the settings allow, in small batches of each kind."""

import logging
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine

from scheduler.services.service import Result, TimedService
from scheduler.settings import Settings, data_folder, log_copies, log_paths
from scheduler.store.db.database import transact
from scheduler.store.upkeep import retention
from scheduler.store.upkeep.retention import Batch, DeletedRun

log = logging.getLogger("paceline.prune")

#: Seconds between two batches, because pruning is not urgent.
PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Pruned:
    """The number of deleted rows by kind; `more` if some kind has further rows to check."""

    deleted: dict[str, int]
    more: bool


class Prune(TimedService):
    """Deletes old rows. Every scheduler prunes, and skips rows that another one has locked.

    It remembers the position within each kind; losing it only means checking some rows again.
    """

    name = "prune"

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self._after: dict[str, Any] = {}
        #: The events of runs up to this position are already deleted.
        self._events_until: Any = retention.FIRST_RUN
        self.interval_s = settings.retention.interval

    def run_once(self, now: datetime) -> Result:
        pruned = self.prune(now)
        counts = ", ".join(f"{count} {kind}" for kind, count in pruned.deleted.items() if count)
        return Result(
            again_in_s=PAUSE_S if pruned.more else None, log=[(logging.INFO, f"Deleted by age: {counts}")] if counts else []
        )

    def prune(self, now: datetime) -> Pruned:
        """Delete one batch of each kind."""
        config = self._settings.retention
        days = {"runs": config.run_days, "events": config.event_days, "audit": config.audit_days}
        days |= dict.fromkeys(retention.KINDS, config.housekeeping_days)
        deleted: dict[str, int] = {}
        for kind, age in days.items():
            if age:
                batch = self._delete(kind, now - timedelta(days=age))
                deleted[kind] = batch.deleted
                delete_data(self._settings, batch.runs)
                if config.logs:
                    delete_logs(self._settings, batch.runs)
        return Pruned(deleted, any(self._after.get(kind) is not None for kind in deleted))

    def _delete(self, kind: str, before: datetime) -> Batch:
        if kind == "events":
            batch = transact(self._engine, retention.delete_events, before, self._events_until)
            self._events_until = batch.after or self._events_until
        else:
            batch = transact(self._engine, _delete, kind, before, self._after.get(kind))
        self._after[kind] = batch.after
        return batch


def everything(engine: Engine, before: datetime) -> Iterator[tuple[str, Batch]]:
    """Delete everything older than `before`, batch by batch."""
    for kind in ("runs", *retention.KINDS):
        after: Any = None
        while True:
            batch = transact(engine, _delete, kind, before, after)
            yield kind, batch
            after = batch.after
            if after is None:
                break


def delete_data(settings: Settings, runs: Iterable[DeletedRun]) -> None:
    """Delete the DataFrames of deleted runs. One that cannot be deleted is logged and left."""
    for run in runs:
        data_folder.delete_run(settings.data_url, run.dag_id, run.run_id, run.key)


def delete_logs(settings: Settings, runs: Iterable[DeletedRun]) -> None:
    """Delete the log folders of deleted runs, and their copies. One that cannot be deleted is logged and left."""
    for run in runs:
        log_copies.delete_run(settings, run.dag_id, run.run_id)
        path = log_paths.run_folder(settings.logs_folder, run.dag_id, run.run_id)
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("%s cannot be deleted: %s", path, error.strerror)


def _delete(connection: Connection, kind: str, before: datetime, after: Any) -> Batch:
    if kind == "runs":
        return retention.delete_runs(connection, before, after or retention.FIRST_RUN)
    return retention.delete_rows(connection, kind, before, after)
