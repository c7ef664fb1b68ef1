"""Log files: their paths and permissions, the mark of incomplete logs, and the copies in the file system of logs.url.

INVARIANT: every ID has its own path, and no path is outside of the logs folder.
"""

import contextlib
import errno
import functools
import hashlib
import logging
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scheduler.settings.model import Settings
from scheduler.settings.types import folder_url

#: Maximum length of a path component, in bytes. File systems allow 255.
MAX_COMPONENT_BYTES = 200
#: Logs hold the output of user code: only the user and the group of the process may read them.
FOLDER_MODE, FILE_MODE = 0o750, 0o640
_INCOMPLETE = "the log of this try is incomplete: "


def try_path(folder: Path, *, dag_id: str, run_id: str, task_id: str, map_index: int, try_number: int) -> str:
    """Return the path of the log of a try."""
    return f"{_task_folder(folder, dag_id, run_id, task_id, map_index)}/try-{try_number}.log"


def rendered_path(log: str) -> str:
    """Return the path of the rendered templates of a try, next to its log."""
    return f"{log.removesuffix('.log')}.rendered.json"


def incomplete(why: str) -> str:
    """Return the note on missing log lines for the reason of a try. The log itself may have no space left for it."""
    return f"{_INCOMPLETE}{why}"


def why_incomplete(reason: str | None) -> str | None:
    """Return why lines are missing in the log of a try that ended with this reason; None if the log is complete."""
    match = re.search(f"{_INCOMPLETE}(.*)", reason or "")
    return None if match is None else match[1]


def run_folder(folder: Path, dag_id: str, run_id: str) -> Path:
    """Return the folder of all logs of a run."""
    return folder / component(dag_id) / component(run_id)


def callbacks_path(folder: Path, *, dag_id: str, run_id: str, task_id: str | None = None, map_index: int = -1) -> str:
    """Return the path of the callback log of a task instance, or of a run.

    No encoded component begins with %c, so the path of a run's log cannot be the folder of a task.
    """
    if task_id is None:
        return f"{run_folder(folder, dag_id, run_id)}/%callbacks.log"
    return f"{_task_folder(folder, dag_id, run_id, task_id, map_index)}/callbacks.log"


@functools.lru_cache(maxsize=4096)
def component(name: str) -> str:
    """Encode `name` as one path component.

    Slashes, control characters, % and a leading dot are percent-encoded. A long name is cut, and a hash of it is appended.
    """
    parts = []
    for index, character in enumerate(name):
        plain = character.isprintable() and character not in "/%\\" and not (character == "." and index == 0)
        parts.append(character if plain else "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass")))
    safe = "".join(parts) or "%"
    if len(safe.encode()) <= MAX_COMPONENT_BYTES:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return safe.encode()[: MAX_COMPONENT_BYTES - 20].decode(errors="ignore") + "%~" + digest


def append(path: str) -> int:
    """Open a log for appending and return its descriptor. Missing folders are created.

    OSError also for a link, a FIFO or anything else that user code has put in its place: nothing is written through it, and
    opening it never blocks.
    """
    folder = os.path.dirname(path)  # noqa: PTH120 - creating a Path takes longer than creating the folder
    # Usually this is the first try: the folder is missing and its parent exists.
    try:
        os.mkdir(folder, FOLDER_MODE)  # noqa: PTH102
    except FileExistsError:
        pass
    except FileNotFoundError:
        # Path.mkdir(parents=True) would set the mode of the last folder only.
        for place in reversed((Path(folder), *Path(folder).parents)):
            place.mkdir(FOLDER_MODE, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, FILE_MODE)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file


def _task_folder(folder: Path, dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    mapped = f"/{map_index}" if map_index >= 0 else ""
    return f"{folder}/{component(dag_id)}/{component(run_id)}/{component(task_id)}{mapped}"


def page_of_try(pages_url: str, attempt: Any) -> str:
    """The address of the page of a task instance, named by the IDs and map_index of `attempt`; empty without `pages_url`."""
    if not pages_url:
        return ""
    parts = ["dags", attempt.dag_id, "runs", attempt.run_id, "tasks", attempt.task_id]
    if attempt.map_index >= 0:
        parts.append(attempt.map_index)
    return "/".join((pages_url.rstrip("/"), *(quote(str(part), safe="") for part in parts)))


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def resolved(folder: Path, path: Path, *, links: bool = False) -> Path:
    """The real path of `path` in `folder`, for `regular_descriptor`. With `links`, links inside the folder are followed. OSError if
    it is outside.
    """
    root = Path(os.path.realpath(folder))
    inside = Path(os.path.realpath(path)) if links else root / path.relative_to(folder)
    if ".." in inside.parts or not inside.is_relative_to(root):
        raise PermissionError(f"{path} leads out of {folder}")
    return inside


def regular_descriptor(path: Path) -> int:
    """Open a regular file of which no part is a link. OSError.

    Each part is opened in the folder before it, so that a part that becomes a link at this moment is not followed either.
    """
    folder = os.open(path.anchor, _FOLDER)
    try:
        for part in path.parts[1:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        file = os.open(path.name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise PermissionError(f"{path} is not a regular file")
    return file


log = logging.getLogger("paceline.logs")

#: Seconds after which a copy that was read is deleted from this machine, and between two searches for these.
KEEP_S, SEARCH_S = 86_400.0, 3600.0
#: Seconds for which a copy that was just read serves all readers, such as a command that follows a log; copies remembered.
FRESH_S, MOST_FRESH = 1.0, 1000
_searched_at = 0.0
_read_at: dict[Path, float] = {}


def root(settings: Settings) -> str | None:
    """The URL of the folder of copies, without a trailing slash; None if logs are not copied."""
    return None if settings.logs.url is None else folder_url(settings.logs.url)


def write(settings: Settings, path: Path) -> None:
    """Copy a log, or another file of the logs folder. Raises the errors of the file system of logs.url.

    A file that is gone, or that a task has replaced with a link, is left out.
    """
    try:
        descriptor = regular_descriptor(resolved(settings.logs_folder, path))
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        files, place = _place(settings, path)
        if _is_local(files):
            files.makedirs(place.rpartition("/")[0], exist_ok=True)
            if Path(place).is_symlink():  # never written through
                Path(place).unlink()
        with files.open(place, "wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)


def local(settings: Settings, path: Path) -> Path:
    """A path on this machine at which a log can be read: its own if it exists, else that of the newest copy, which is read first.

    If there is neither, the path itself.
    """
    if settings.logs.url is None or path.is_file():
        return path
    cached = cache(settings) / path.relative_to(settings.logs_folder)
    if time.monotonic() - _read_at.get(cached, -FRESH_S) < FRESH_S and cached.is_file():
        return cached
    try:
        files, place = _place(settings, path)
        if _is_local(files):
            _read_local(regular_descriptor(resolved(Path(_base(settings)), Path(place))), cached)
        else:
            _read(files, place, files.info(place), cached)
    except FileNotFoundError:
        return path
    except Exception as error:  # each file system has its own errors
        log.warning("%s cannot be read from %s: %s", path.name, settings.logs.url, error)
        return cached if cached.is_file() else path
    if len(_read_at) > MOST_FRESH:
        _read_at.clear()
    _read_at[cached] = time.monotonic()
    _forget_old(cache(settings))
    return cached


def cache(settings: Settings) -> Path:
    """The folder of the copies that this machine has read."""
    return settings.home / "cache" / "logs"


def delete_run(settings: Settings, dag_id: str, run_id: str) -> None:
    """Delete the copies of a deleted run. Errors are logged and ignored."""
    if settings.logs.url is None:
        return
    try:
        files, place = _place(settings, run_folder(settings.logs_folder, dag_id, run_id))
        with contextlib.suppress(FileNotFoundError):
            files.rm(place, recursive=True)
    except Exception as error:
        log.warning("The logs of run %s of %s cannot be deleted from %s: %s", run_id, dag_id, settings.logs.url, error)


def _place(settings: Settings, path: Path) -> tuple[Any, str]:
    import fsspec

    folder = root(settings)
    assert folder is not None
    files, base = fsspec.url_to_fs(folder)
    return files, f"{str(base).rstrip('/')}/{path.relative_to(settings.logs_folder)}"


def _base(settings: Settings) -> str:
    import fsspec

    return str(fsspec.url_to_fs(root(settings))[1])


def _is_local(files: Any) -> bool:
    return files.protocol in {"file", ("file", "local")}


def _read_local(descriptor: int, cached: Path) -> None:
    """Read a copy in a folder of this machine: what a task has put there instead of a file is not followed."""
    with os.fdopen(descriptor, "rb") as file:
        size, changed = os.fstat(descriptor).st_size, os.fstat(descriptor).st_mtime
        with contextlib.suppress(OSError):
            known = cached.stat()
            if known.st_size == size and known.st_mtime >= changed:
                os.utime(cached)
                return
        cached.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        part = cached.with_name(f"{cached.name}.{os.getpid()}.part")
        with part.open("wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    part.chmod(FILE_MODE)
    part.replace(cached)


def _read(files: Any, place: str, about: dict[str, Any], cached: Path) -> None:
    """Read a copy, unless the cached one has its size and is not older."""
    changed = about.get("mtime") or about.get("LastModified") or about.get("last_modified")
    mark = f"{about['size']} {changed} {about.get('ETag', '')}"
    note = cached.with_name(f"{cached.name}.mark")
    with contextlib.suppress(OSError):
        if note.read_text() == mark and cached.is_file():
            os.utime(cached)
            return
    cached.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    part = cached.with_name(f"{cached.name}.{os.getpid()}.part")
    files.get_file(place, str(part))
    part.chmod(FILE_MODE)
    part.replace(cached)
    note.write_text(mark)


def _forget_old(folder: Path) -> None:
    """Delete copies that were not read for a day, now and then."""
    global _searched_at  # noqa: PLW0603 - one for each process
    if time.monotonic() - _searched_at < SEARCH_S:
        return
    _searched_at = time.monotonic()
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                path = Path(parent, name)
                if time.time() - path.stat().st_mtime > KEEP_S:
                    path.unlink()
