"""Copies of the logs of tries at logs.url, a folder or an fsspec URL: their places, writing, reading and deletion."""

import contextlib
import logging
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

from scheduler.settings import log_paths
from scheduler.settings.model import Settings
from scheduler.settings.types import folder_url

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
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        files, place = _place(settings, path)
        if files.protocol in {"file", ("file", "local")}:
            files.makedirs(place.rpartition("/")[0], exist_ok=True)
        with files.open(place, "wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)


def local(settings: Settings, path: Path) -> Path:
    """A path on this machine at which a log can be read: its own if it exists, else that of the newest copy, which is read first.

    If there is neither, the path itself.
    """
    if settings.logs.url is None or path.is_file():
        return path
    cached = settings.home / "cache" / "logs" / path.relative_to(settings.logs_folder)
    if time.monotonic() - _read_at.get(cached, -FRESH_S) < FRESH_S and cached.is_file():
        return cached
    try:
        files, place = _place(settings, path)
        about = files.info(place)
        _read(files, place, about, cached)
    except FileNotFoundError:
        return path
    except Exception as error:  # each file system has its own errors
        log.warning("%s cannot be read from %s: %s", path.name, settings.logs.url, error)
        return cached if cached.is_file() else path
    if len(_read_at) > MOST_FRESH:
        _read_at.clear()
    _read_at[cached] = time.monotonic()
    _forget_old(settings.home / "cache" / "logs")
    return cached


def delete_run(settings: Settings, dag_id: str, run_id: str) -> None:
    """Delete the copies of a deleted run. Errors are logged and ignored."""
    if settings.logs.url is None:
        return
    try:
        files, place = _place(settings, log_paths.run_folder(settings.logs_folder, dag_id, run_id))
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


def _read(files: Any, place: str, about: dict[str, Any], cached: Path) -> None:
    """Read a copy, unless the cached one has its size and is not older."""
    changed = about.get("mtime") or about.get("LastModified") or about.get("last_modified")
    mark = f"{about['size']} {changed} {about.get('ETag', '')}"
    note = cached.with_name(f"{cached.name}.mark")
    with contextlib.suppress(OSError):
        if note.read_text() == mark and cached.is_file():
            os.utime(cached)
            return
    cached.parent.mkdir(log_paths.FOLDER_MODE, parents=True, exist_ok=True)
    part = cached.with_name(f"{cached.name}.{os.getpid()}.part")
    files.get_file(place, str(part))
    part.chmod(log_paths.FILE_MODE)
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
