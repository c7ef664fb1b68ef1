"""Deletion of old records on request, and of the files of deleted runs."""

import logging
import shutil
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from scheduler.actions.actor import Actor
from scheduler.settings import Settings, data_folder, log_paths
from scheduler.store.db.database import transact
from scheduler.store.runs import deleted_runs
from scheduler.store.runs.deleted_runs import DeletedRun
from scheduler.store.upkeep import retention
from scheduler.store.upkeep.retention import Batch

log = logging.getLogger("paceline.prune")


def clean(by: Actor, before: datetime, *, logs: bool = False) -> Iterator[tuple[str, Batch]]:
    """Delete everything older than `before`, batch by batch, with the files of the runs; with `logs`, also their log folders."""
    for kind in ("runs", *retention.KINDS):
        after: Any = None
        while True:
            url = by.settings.bundles.code_url
            batch = by.write(retention.delete, kind, before, after, logs=logs, taken=True, code_url=url)
            yield kind, batch
            delete_files(by.engine, by.settings, batch.runs)
            after = batch.after
            if after is None:
                break


def delete_files(engine: Engine, settings: Settings, runs: Iterable[DeletedRun]) -> None:
    """Delete the files of deleted runs, after the commit. A file that cannot be deleted is logged and left."""
    for run in runs:
        try:
            data_folder.delete_run(settings.data_url, run.dag_id, run.run_id, run.key)
            if run.logs:
                _delete_logs(settings, run)
        except Exception:
            log.exception("Files of run %s of %s are left", run.run_id, run.dag_id)
        transact(engine, deleted_runs.forget, run.key)


def _delete_logs(settings: Settings, run: DeletedRun) -> None:
    log_paths.delete_run(settings, run.dag_id, run.run_id)
    path = log_paths.run_folder(settings.logs_folder, run.dag_id, run.run_id)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s cannot be deleted: %s", path, error.strerror)
