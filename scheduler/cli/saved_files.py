"""A command that follows a save in the DAGs folder of this machine: it waits until a scheduler has parsed what was saved."""

import time
from typing import TYPE_CHECKING

from scheduler.cli import options, output

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: Seconds between two looks, and at most. A shared file is parsed up to 5 s after the one before.
PAUSE_S, LONGEST_S = 0.05, 15.0


def wait(dag_id: str) -> None:
    """Wait until the newest version of a DAG has what was saved a moment ago, or until its file is found to have an error.

    Nothing is waited for if the DAG is of another bundle, if no scheduler runs, or if this machine has no DAGs folder.
    """
    settings = options.settings()
    if settings.bundles.pin_dags_folder and settings.dags_folder.is_dir():
        until = time.monotonic() + LONGEST_S
        while missing := options.transact(_missing, dag_id):
            if time.monotonic() >= until:
                return output.say(f"{missing} was saved just now, and no scheduler has parsed it yet.")
            time.sleep(PAUSE_S)
    return None


def _missing(connection: "Connection", dag_id: str) -> str | None:
    """A file that was saved a moment ago and is not in the newest version of a DAG; None if there is nothing to wait for."""
    from scheduler.dagfiles import pinned_folder
    from scheduler.store.dags import bundles
    from scheduler.store.db.rows import EngineReader

    reader = EngineReader(connection)
    dag = bundles.newest_of_folder(reader, dag_id)
    if dag is None or not dag.is_watched:
        return None
    entries = bundles.tree(reader, dag.bundle_version_id)
    saved, last = pinned_folder.just_saved(options.settings(), entries, others=dag.other_files)
    return saved[0] if saved and not (dag.is_broken and dag.parsed_at > last) else None
