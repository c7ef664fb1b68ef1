"""DAGs: pause, unpause, parse again, delete, and the favorites of an account."""

import contextlib
from collections.abc import Collection

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from scheduler.actions import installation
from scheduler.actions.actor import Actor
from scheduler.store.actions.delete import DeletedDag, delete_dag
from scheduler.store.dags import dags
from scheduler.store.read.dags import dag


def set_paused(by: Actor, dag_id: str, *, paused: bool) -> bool:
    """Pause or unpause a DAG; False if it was so already. NotFoundError."""
    changed = by.write(dags.pause if paused else dags.unpause, dag_id)
    by.announce("dag paused or unpaused")
    return changed


def set_each_paused(by: Actor, dag_ids: Collection[str], *, paused: bool) -> None:
    """Pause or unpause several DAGs. One that was deleted meanwhile is passed over."""
    by.write(_set_each_paused, dag_ids, paused=paused)
    if dag_ids:
        by.announce("dag paused or unpaused")


def _set_each_paused(connection: Connection, dag_ids: Collection[str], *, paused: bool) -> None:
    for dag_id in sorted(dag_ids):  # schedules are locked in this order everywhere
        with contextlib.suppress(NotFoundError):
            (dags.pause if paused else dags.unpause)(connection, dag_id)


def reparse(by: Actor, *, dag_id: str | None = None, path: str | None = None) -> list[str]:
    """Parse the file of a DAG, this file, or all files again now, whether they have changed or not. Returns the files.

    NotFoundError if there is no such DAG.
    """
    files = by.write(dags.reparse, dag_id, path)
    by.announce("files to parse")
    return files


def delete(by: Actor, dag_id: str) -> DeletedDag:
    """Delete a DAG with its runs, their files and its versions. If its file still exists, the DAG is created again without them.

    NotFoundError; ConflictError while a worker has some of its tasks, or a teardown has yet to run.
    """
    deleted = by.write(delete_dag, dag_id)
    installation.delete_files(by.engine, by.settings, deleted.runs)
    by.announce("runs deleted")
    return deleted


def set_favorite(by: Actor, account_id: int, dag_id: str, *, favorite: bool) -> None:
    """Add a DAG to the favorites of an account, or take it out. NotFoundError."""
    by.write(_set_favorite, account_id, dag_id, favorite=favorite)


def _set_favorite(connection: Connection, account_id: int, dag_id: str, *, favorite: bool) -> None:
    dag(connection, dag_id)
    dags.set_favorite(connection, account_id, dag_id, favorite=favorite)
