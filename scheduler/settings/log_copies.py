"""Copies of the logs of tries at logs.url, a folder or an fsspec URL: their places, writing, reading and deletion."""

import contextlib
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

from scheduler.settings import log_paths, regular_files
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
        descriptor = regular_files.descriptor(regular_files.resolved(settings.logs_folder, path))
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
            _read_local(regular_files.descriptor(regular_files.resolved(Path(_base(settings)), Path(place))), cached)
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
        cached.parent.mkdir(log_paths.FOLDER_MODE, parents=True, exist_ok=True)
        part = cached.with_name(f"{cached.name}.{os.getpid()}.part")
        with part.open("wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    part.chmod(log_paths.FILE_MODE)
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
