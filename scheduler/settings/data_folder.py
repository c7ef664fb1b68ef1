"""Where DataFrames that tasks return lie, and their deletion: a folder for each attempt, which only the XCom of a success names.

`<data url>/<dag>/<run>/<task>[/<map index>]/r<number of the run>-try<n>-<dispatch id>/<name>`

INVARIANT: two attempts never share a folder, and nobody deletes a folder that an XCom may name. A try deletes what tries with a
lower number of the same run left, which were fenced off before it could begin; a deletion of a run takes the attempts of that
run alone, not those of another one that was made with its id meanwhile. What users put beside them is left.
"""

import contextlib
import logging
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.settings import log_paths

log = logging.getLogger("paceline.data")

LOCAL = "file://"
#: What Spark or fsspec would read as a pattern of paths, or as the mark of a hidden folder (_ in front).
_PATTERNS = re.compile(r"^_|[%*?\[\]{}]")
_ATTEMPT = re.compile(r"r(?P<run>\d+)-try(?P<number>\d+)-[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An attempt; `run_key` is the number that the database gave the run."""

    data_url: str
    dag_id: str
    run_id: str
    run_key: int
    task_id: str
    map_index: int
    try_number: int
    dispatch_id: str

    @property
    def task_url(self) -> str:
        """The folder of all attempts of the task instance."""
        mapped = f"/{self.map_index}" if self.map_index >= 0 else ""
        return f"{_run_url(self.data_url, self.dag_id, self.run_id)}/{component(self.task_id)}{mapped}"

    @property
    def url(self) -> str:
        return f"{self.task_url}/r{self.run_key}-try{self.try_number}-{component(self.dispatch_id)}"


def component(name: str) -> str:
    """`name` as one component of a path on any file system: no two names share one."""
    return log_paths.component(_PATTERNS.sub(lambda found: f"%{ord(found[0]):02X}", name))


def delete(place: Place) -> None:
    """Delete what an attempt wrote; what cannot be deleted is said and left."""
    _delete([place.url], root=place.data_url)


def delete_earlier(place: Place) -> None:
    """Delete what tries before this one left."""
    _delete(_attempts(place.task_url, run_key=place.run_key, before=place.try_number), root=place.data_url)


def delete_run(data_url: str, dag_id: str, run_id: str, run_key: int) -> None:
    """Delete what the attempts of a run wrote; what cannot be deleted is said and left."""
    folder = _run_url(data_url, dag_id, run_id)
    if not _is_missing(folder):
        # Of a task, or of the instances of a mapped task.
        found = [url for depth in (1, 2) for url in _attempts(folder, run_key=run_key, depth=depth)]
        _delete(found, root=data_url)


def size_bytes(url: str) -> int:
    """The bytes of all files in a folder."""
    files, path = _files(url)
    return int(files.du(path))


def _run_url(data_url: str, dag_id: str, run_id: str) -> str:
    return f"{data_url}/{component(dag_id)}/{component(run_id)}"


def _attempts(folder: str, *, run_key: int, before: float = math.inf, depth: int = 0) -> Iterator[str]:
    """URLs of attempts of a run, in a folder or `depth` below it."""
    if _is_missing(folder):
        return
    with _said(folder):
        files, path = _files(folder)
        for child in _folders(files, path, depth + 1):
            found = _ATTEMPT.fullmatch(child.rstrip("/").rpartition("/")[2])
            if found and int(found["run"]) == run_key and int(found["number"]) < before:
                yield str(files.unstrip_protocol(child))


def _folders(files: Any, path: str, depth: int) -> list[str]:
    """The folders `depth` below a path; a listing, since the names of users may read as patterns."""
    found = [path]
    for _ in range(depth):
        found = [child["name"] for parent in found for child in _listed(files, parent) if child["type"] == "directory"]
    return found


def _listed(files: Any, path: str) -> list[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(files.ls(path, detail=True))
    return []


def _delete(urls: Iterable[str], *, root: str) -> None:
    for url in urls:
        if _is_missing(url):
            continue
        with _said(url), contextlib.suppress(FileNotFoundError):
            files, path = _files(url)
            files.rm(path, recursive=True)
        if url.startswith(LOCAL):
            _remove_empty(Path(url.removeprefix(LOCAL)).parent, Path(root.removeprefix(LOCAL)))


def _remove_empty(folder: Path, root: Path) -> None:
    """Folders of tasks, runs and DAGs that hold nothing any more; object stores have none."""
    with contextlib.suppress(OSError):
        while folder.is_relative_to(root) and folder != root:
            folder.rmdir()
            folder = folder.parent


@contextlib.contextmanager
def _said(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each file system has errors of its own
        log.warning("%s cannot be deleted: %s: %s", url, type(error).__name__, str(error).split("\n")[0])


def _is_missing(url: str) -> bool:
    """Whether it surely is not there, asked without loading what speaks to other file systems."""
    return url.startswith(LOCAL) and not Path(url.removeprefix(LOCAL)).exists()


def _files(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import fsspec

    files, path = fsspec.url_to_fs(url)
    return files, str(path)
