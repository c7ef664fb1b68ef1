"""The folders of DataFrames that tasks return, and their deletion. Each attempt has a folder. Only the XCom of a success names it.

`<data url>/<dag>/<run>/<task>[/<map index>]/r<number of the run>-try<n>-<dispatch ID>/<name>`

INVARIANT: two attempts never share a folder, and no process deletes a folder that an XCom may name. A try deletes the folders of
tries with a lower number of the same run, which were fenced off before it could begin. Deleting a run deletes only the attempts of
that run, not those of another run that was created with the same ID in the meantime. Other files of users are kept.
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
#: Characters that Spark or fsspec would read as a path pattern, or as the mark of a hidden folder (a leading _).
_PATTERNS = re.compile(r"^_|[%*?\[\]{}]")
_ATTEMPT = re.compile(r"r(?P<run>\d+)-try(?P<number>\d+)-[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The location of an attempt. `run_key` is the number of the run in the database."""

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
    """Encode `name` as a path component for any file system. The encoding is unique."""
    return log_paths.component(_PATTERNS.sub(lambda match: f"%{ord(match[0]):02X}", name))


def delete(place: Place) -> None:
    """Delete the folder of an attempt. An error is logged and ignored."""
    _delete([place.url], root=place.data_url)


def delete_earlier(place: Place) -> None:
    """Delete the folders of earlier tries."""
    _delete(_attempts(place.task_url, run_key=place.run_key, before=place.try_number), root=place.data_url)


def delete_run(data_url: str, dag_id: str, run_id: str, run_key: int) -> None:
    """Delete the folders of all attempts of a run. Errors are logged and ignored."""
    folder = _run_url(data_url, dag_id, run_id)
    if not _is_missing(folder):
        # Depth 1 holds the attempts of tasks, depth 2 the attempts of mapped task instances.
        urls = [url for depth in (1, 2) for url in _attempts(folder, run_key=run_key, depth=depth)]
        _delete(urls, root=data_url)


def sizes(url: str) -> dict[str, int]:
    """Return the size of each file in a folder, in bytes, by its path in the file system of `url`."""
    files, path = _files(url)
    return {name: int(entry["size"]) for name, entry in files.find(path, detail=True).items()}


def _run_url(data_url: str, dag_id: str, run_id: str) -> str:
    return f"{data_url}/{component(dag_id)}/{component(run_id)}"


def _attempts(folder: str, *, run_key: int, before: float = math.inf, depth: int = 0) -> Iterator[str]:
    """Yield the URLs of attempts of a run, in a folder or `depth` levels below it."""
    if _is_missing(folder):
        return
    with _logged(folder):
        files, path = _files(folder)
        for child in _folders(files, path, depth + 1):
            match = _ATTEMPT.fullmatch(child.rstrip("/").rpartition("/")[2])
            if match and int(match["run"]) == run_key and int(match["number"]) < before:
                yield str(files.unstrip_protocol(child))


def _folders(files: Any, path: str, depth: int) -> list[str]:
    """Return the folders `depth` levels below a path. It lists folders, because names from users may look like patterns."""
    folders = [path]
    for _ in range(depth):
        folders = [child["name"] for parent in folders for child in _listed(files, parent) if child["type"] == "directory"]
    return folders


def _listed(files: Any, path: str) -> list[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(files.ls(path, detail=True))
    return []


def _delete(urls: Iterable[str], *, root: str) -> None:
    for url in urls:
        if _is_missing(url):
            continue
        with _logged(url), contextlib.suppress(FileNotFoundError):
            files, path = _files(url)
            files.rm(path, recursive=True)
        if url.startswith(LOCAL):
            _remove_empty(Path(url.removeprefix(LOCAL)).parent, Path(root.removeprefix(LOCAL)))


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove empty folders of tasks, runs and DAGs. Object stores have none."""
    with contextlib.suppress(OSError):
        while folder.is_relative_to(root) and folder != root:
            folder.rmdir()
            folder = folder.parent


@contextlib.contextmanager
def _logged(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each file system has its own errors
        log.warning("%s cannot be deleted: %s: %s", url, type(error).__name__, str(error).split("\n")[0])


def _is_missing(url: str) -> bool:
    """Whether a local folder is missing. Always False for other file systems, so that their libraries are not loaded."""
    return url.startswith(LOCAL) and not Path(url.removeprefix(LOCAL)).exists()


def _files(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it."""
    import fsspec

    files, path = fsspec.url_to_fs(url)
    return files, str(path)
