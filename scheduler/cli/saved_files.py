"""A command that follows a save in the DAGs folder of this machine: it waits until a scheduler has parsed what was saved."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from scheduler.cli import options, output

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: Seconds between two looks, and at most. A shared file is parsed up to 5 s after the one before.
PAUSE_S, LONGEST_S = 0.05, 15.0
#: Seconds after which it is enough that the DAG file was parsed after the first save: a program may save a file all the time.
ENOUGH_S = 6.0


class Missing(NamedTuple):
    """A file that is not so in the newest version of a DAG, when the last one was saved, and when the DAG file was parsed."""

    path: str
    saved_at: float
    parsed_at: float


def wait(dag_id: str) -> None:
    """Wait until the newest version of a DAG has what was saved a moment ago, or until its file is found to have an error.

    Nothing is waited for if the DAG is of another bundle, if no scheduler runs, or if this machine has no DAGs folder.
    """
    settings = options.settings()
    if settings.bundles.pin_dags_folder and settings.dags_folder.is_dir():
        missing = until_parsed(lambda: options.transact(_missing, dag_id))
        if missing is not None:
            output.say(f"{missing.path} was saved just now, and no scheduler has parsed it yet.")


def until_parsed(
    look: Callable[[], Missing | None], clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> Missing | None:
    """Look until nothing is missing, but not forever. Returns what no scheduler has parsed until then."""
    began = clock()
    first = missing = look()
    while first is not None and missing is not None:
        waited_s = clock() - began
        if waited_s > ENOUGH_S and missing.parsed_at > first.saved_at:
            return None
        if waited_s > LONGEST_S:
            return missing
        sleep(PAUSE_S)
        missing = look()
    return None


def _missing(connection: "Connection", dag_id: str) -> Missing | None:
    """What was saved a moment ago and is not in the newest version of a DAG; None if there is nothing to wait for."""
    from scheduler.dagfiles import pinned_folder
    from scheduler.store.dags import bundles
    from scheduler.store.db.rows import EngineReader

    reader = EngineReader(connection)
    dag = bundles.newest_of_folder(reader, dag_id)
    if dag is None or not dag.is_watched:
        return None
    entries = bundles.tree(reader, dag.bundle_version_id)
    saved, last = pinned_folder.just_saved(options.settings(), entries, others=dag.other_files)
    return Missing(saved[0], last, dag.parsed_at) if saved and not (dag.is_broken and dag.parsed_at > last) else None
