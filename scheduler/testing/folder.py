"""The DAG files of a folder, loaded for tests."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from paceline.authoring.arguments import near
from paceline.authoring.dag import DAG
from paceline.exceptions import DagError, NotFoundError
from scheduler.dagfiles import load, problem
from scheduler.dagfiles.watch import dag_files
from scheduler.serialized.authored import from_dag
from scheduler.settings import Settings


@dataclass
class DagBag:
    """The DAGs of a folder by ID, the file of each, and the message for each file that cannot be loaded."""

    folder: Path
    dags: dict[str, DAG] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    import_errors: dict[str, str] = field(default_factory=dict)

    @property
    def dag_ids(self) -> list[str]:
        return list(self.dags)

    def get_dag(self, dag_id: str) -> DAG:
        """The DAG with this ID; NotFoundError suggests the nearest one."""
        if dag_id not in self.dags:
            broken = f" These files cannot be loaded: {', '.join(self.import_errors)}." if self.import_errors else ""
            raise NotFoundError(f"No file in {self.folder} defines a DAG {dag_id!r}{near(dag_id, self.dags)}{broken}")
        return self.dags[dag_id]

    def size(self) -> int:
        return len(self.dags)

    def check(self) -> None:
        """DagError with all messages if a file cannot be loaded."""
        if self.import_errors:
            raise DagError("\n".join(f"{file}: {message}" for file, message in self.import_errors.items()))


def listed(settings: Settings) -> list[str] | None:
    """The DAG files that a scheduler finds in the DAGs folder; None if the folder cannot be read."""
    return dag_files(settings.dags_folder, settings.core.dag_ignore_file_syntax)


def files_of(settings: Settings) -> list[str]:
    """The DAG files that a scheduler finds in the DAGs folder. NotFoundError if there is no such folder."""
    files = listed(settings)
    if files is None:
        raise NotFoundError(
            f"There is no DAGs folder {settings.dags_folder}; set `dag_folder` in the settings of pytest, or PACELINE_DAGS_FOLDER."
        )
    return files


def load_folder(settings: Settings) -> DagBag:
    """Load every DAG file of the DAGs folder. NotFoundError if there is no such folder."""
    bag = DagBag(settings.dags_folder)
    for file in files_of(settings):
        try:
            dags = load_file(settings, file)
        except (Exception, SystemExit) as error:
            bag.import_errors[file] = problem.of_exception(error, bag.folder / file, memory_limit_mb=0).with_line
            continue
        for dag_id, dag in dags.items():
            if dag_id in bag.dags:
                bag.import_errors[file] = f"The DAG {dag_id!r} is also in {bag.files[dag_id]}; rename one."
            else:
                bag.dags[dag_id], bag.files[dag_id] = dag, file
    return bag


def load_file(settings: Settings, file: str) -> dict[str, DAG]:
    """The DAGs of one file of the DAGs folder, checked as a scheduler does. Raises what the file raises."""
    load.configure(settings.core.default_timezone, airflow_imports=settings.core.airflow_imports)
    dags = load.load(settings.dags_folder, file, all_errors=True)
    for dag in dags.values():
        from_dag(dag, file=file, core=settings.core, scheduler=settings.scheduler)
    return dags


def find(settings: Settings, dag_id: str) -> tuple[DAG, str]:
    """A DAG and its file in the DAGs folder. Files that mention its ID are loaded first, and no other after that of the DAG.

    NotFoundError if there is no such DAG or folder. DagError if a file that mentions it cannot be loaded.
    """
    load.configure(settings.core.default_timezone, airflow_imports=settings.core.airflow_imports)
    folder, files = settings.dags_folder, listed(settings)
    if files is None:
        raise NotFoundError(f"The DAGs folder {folder} cannot be read: correct PACELINE_DAGS_FOLDER.")
    failed: dict[str, str] = {}
    for file in sorted(files, key=lambda file: not _mentions(folder / file, dag_id)):
        try:
            dags = load.load(folder, file, all_errors=True)
        except (Exception, SystemExit) as error:
            limit_mb = settings.scheduler.dag_file_memory_limit_mb
            failed[file] = problem.of_exception(error, folder / file, memory_limit_mb=limit_mb).with_line
            continue
        if dag_id in dags:
            return dags[dag_id], file
    for file, message in failed.items():
        if _mentions(folder / file, dag_id):
            raise DagError(f"{folder / file}, which mentions {dag_id!r}, cannot be read: {message}")
    raise NotFoundError(f"No file in {folder} defines a DAG {dag_id!r}: correct the id, or PACELINE_DAGS_FOLDER.")


def _mentions(path: Path, dag_id: str) -> bool:
    with contextlib.suppress(OSError):
        return dag_id.encode() in path.read_bytes()
    return False
