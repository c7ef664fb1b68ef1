"""The files of deleted runs: the DataFrames that tasks returned and, if they go with the run, the logs and their copies."""

import logging
import shutil
import threading
from collections.abc import Iterable

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from scheduler.settings import Settings, data_folder, log_copies, log_paths
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import deleted_runs
from scheduler.store.runs.deleted_runs import DeletedRun

log = logging.getLogger("paceline.prune")


def delete(engine: Engine, settings: Settings, runs: Iterable[DeletedRun]) -> None:
    """Delete the files of deleted runs, after the commit. A file that cannot be deleted is logged and left."""
    for run in runs:
        try:
            data_folder.delete_run(settings.data_url, run.dag_id, run.run_id, run.key)
            if run.logs:
                _delete_logs(settings, run)
        except Exception:
            log.exception("Files of run %s of %s are left", run.run_id, run.dag_id)
        transact(engine, deleted_runs.forget, run.key)


def delete_due(engine: Engine, settings: Settings, stop: threading.Event) -> None:
    """Delete, run by run, the files that no other process deletes, until none are left or `stop`."""
    try:
        while not stop.is_set() and (run := transact(engine, deleted_runs.take)) is not None:
            delete(engine, settings, [run])
    except OperationalError as error:  # another pass continues
        log.warning("%s", database.translate(error))
    except Exception:
        log.exception("Deleting the files of runs failed; another pass continues")


def _delete_logs(settings: Settings, run: DeletedRun) -> None:
    log_copies.delete_run(settings, run.dag_id, run.run_id)
    path = log_paths.run_folder(settings.logs_folder, run.dag_id, run.run_id)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s cannot be deleted: %s", path, error.strerror)
