"""The installation: workers that drain, the accounts of the web UI, and the deletion of old records and of the files of deleted
runs.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from scheduler.actions.actor import Actor
from scheduler.settings import Settings, data_folder, log_paths
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact
from scheduler.store.runs import deleted_runs
from scheduler.store.runs.deleted_runs import DeletedRun
from scheduler.store.upkeep import processes, retention
from scheduler.store.upkeep.retention import Batch

R = TypeVar("R")


def drain(by: Actor, worker: str) -> list[str]:
    """Ask workers to take no more tasks, and to end when their running tasks have ended. `worker` is a name or an ID.

    Returns their IDs. NotFoundError; ConflictError if they have stopped.
    """
    return by.write(processes.drain, worker, by.name)


def create_account(by: Actor, name: str, password: str, *, role: str | None, tags: Mapping[str, str]) -> None:
    """Create an account with a role on everything, and roles on the DAGs with these tags."""
    _recorded(by, "users.create", name, lambda c: accounts.create(c, name, password, role=role, tags=dict(tags)))


def set_password(by: Actor, name: str, password: str) -> None:
    """Change a password. All sessions of the account end."""
    _recorded(by, "users.password", name, lambda c: accounts.set_password(c, name, password))


def create_token(by: Actor, name: str, *, lasts_s: float, label: str) -> tuple[str, datetime]:
    """Create an API token of an account, and return it with the time at which it expires."""
    return _recorded(
        by, "users.token", name, lambda c: logins.issue(c, accounts.account_id(c, name), "token", lasts_s=lasts_s, name=label)
    )


def revoke_tokens(by: Actor, name: str, label: str) -> None:
    """Delete the API tokens of an account with this label."""
    _recorded(by, "users.revoke_token", name, lambda c: logins.revoke(c, accounts.account_id(c, name), label))


def delete_account(by: Actor, name: str) -> None:
    """Delete an account with its sessions and tokens."""
    _recorded(by, "users.delete", name, lambda c: accounts.delete(c, name))


def _recorded(by: Actor, event: str, name: str, work: Callable[[Connection], R]) -> R:
    """Make a change and its entry in the audit log in one transaction."""

    def both(connection: Connection) -> R:
        result = work(connection)
        by.record(connection, event, {"name": name})
        return result

    return by.write(both)


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
