"""The DAGs folder as a version of a bundle: its files by their content, read again only where they changed."""

import contextlib
import hashlib
import logging
import math
import os
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scheduler.dagfiles import bundle_files
from scheduler.dagfiles.bundle_files import BundleRefusedError
from scheduler.settings import Settings, log_paths
from scheduler.store.dags.bundles import Entry, digest_of

log = logging.getLogger(__name__)

#: Seconds, longer than a tick of the clock for file times: a file that was written in the tick of a look may change unseen.
TICK_S = 0.02
#: A look counts for so many seconds, and for so many times as long as it took, unless a change is known.
FRESH_S, FRESH_TIMES = 0.5, 20
#: Seconds between two times that all DAG files are parsed because a file changed that all may use.
SHARED_S = 5.0
#: Seconds after a save in which a command waits for its parsing. An older difference is one of another folder.
JUST_S = 60.0
Stamp = tuple[int, ...]


class ChangedError(Exception):
    """A file changed after the folder was looked at."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The folder at one moment: its files by path, and where each content is."""

    folder: Path
    #: Where contents are stored; None for the database.
    code_url: str | None
    entries: Mapping[str, Entry] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    #: Of each file that could not change again without another stamp.
    stamps: Mapping[str, Stamp] = field(default_factory=dict)

    def is_as_it_was(self, paths: Collection[str]) -> bool:
        """Whether these files of the folder are still those of the snapshot."""
        return all(self._is_same(path, entry) for path in paths if (entry := self.entries.get(path)) is not None)

    def _is_same(self, path: str, entry: Entry) -> bool:
        try:
            status = (self.folder / path).stat()
            if path in self.stamps:
                return self.stamps[path] == _stamp(status)
            return entry == _entry(path, str(self.folder / path), status)
        except (OSError, BundleRefusedError):
            return False

    def read(self, digest: str) -> bytes:
        """A content. ChangedError if its file has another one now."""
        try:
            with os.fdopen(log_paths.regular_descriptor(Path(self.places[digest])), "rb") as file:
                content = file.read()
        except OSError as error:
            raise ChangedError from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise ChangedError
        return content


def just_saved(settings: Settings, entries: Collection[Entry], *, others: Collection[str]) -> tuple[list[str], float]:
    """The files of the DAGs folder that were saved a moment ago, and are not so in a version, and the time of the last save.

    `entries` are the files of the version. `others` are DAG files of other DAGs. A folder that cannot be pinned has none.
    """
    known = {entry.path: entry for entry in entries}
    oldest = time.time() - JUST_S
    found, last = list[str](), 0.0
    with contextlib.suppress(BundleRefusedError, OSError):
        for path, real, status in bundle_files.list_folder(settings.dags_folder, settings.bundles):
            saved_at = max(status.st_mtime, status.st_ctime)
            if saved_at > oldest and path not in others and _entry(path, real, status) != known.get(path):
                found.append(path)
                last = max(last, saved_at)
    return found, last


class PinnedFolder:
    """Looks at a DAGs folder. One that could be no bundle is not pinned, which is logged once: its runs execute what is there."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.dags_folder
        self._limits = settings.bundles
        self._check_interval_s = settings.scheduler.min_file_process_interval
        #: The digest of the files that all DAGs share, when it changed, and when it is computed again, on the monotonic clock.
        self._shared: str | None = None
        self._shared_at = -math.inf
        self._share_at = 0.0
        self._last: Snapshot | None = None
        self._fresh_until = self._rests_until = 0.0
        self._refused: str | None = None

    def look(self) -> Snapshot | None:
        """The folder as it is, or was a moment ago; None if it cannot be pinned."""
        started = time.monotonic()
        if started < self._fresh_until:
            return self._last
        try:
            self._last = self._look(self._last or Snapshot(self._folder, self._limits.code_url))
            self._refused = None
        except BundleRefusedError as refused:
            if self._refused != str(refused):
                log.warning("The DAGs folder is not pinned, so runs execute what it has when a task starts: %s", refused)
            self._last, self._refused = None, str(refused)
        self._rests_until = started + FRESH_TIMES * (time.monotonic() - started)
        self._fresh_until = max(started + FRESH_S, self._rests_until)
        return self._last

    def changed(self) -> None:
        """Look again the next time: a file of the folder has changed."""
        self._fresh_until = 0.0

    def shared_changed(self, dag_files: Collection[str], *, news: bool) -> bool:
        """Whether a file changed that any DAG may use: all but these DAG files are code of every DAG. True the first time.

        `news` is whether any file has changed. What nothing reports is found when unchanged files would be parsed again.
        """
        now = time.monotonic()
        if news:
            self._share_at = min(self._share_at, max(self._shared_at + SHARED_S, self._rests_until))
        if now < self._share_at:
            return False
        self.changed()
        self._share_at = now + self._check_interval_s
        folder = self.look()
        entries = () if folder is None else folder.entries.values()
        shared = digest_of(entry for entry in entries if entry.path not in dag_files)
        if shared == self._shared:
            return False
        self._shared, self._shared_at = shared, now
        return True

    def _look(self, last: Snapshot) -> Snapshot:
        entries, places, stamps = dict[str, Entry](), dict[str, str](), dict[str, Stamp]()
        now = time.time_ns()
        for path, real, status in bundle_files.list_folder(self._folder, self._limits):
            stamp = _stamp(status)
            entry = last.entries[path] if last.stamps.get(path) == stamp else _entry(path, real, status)
            if entry is None:
                continue  # it was removed meanwhile
            if now - max(status.st_mtime_ns, status.st_ctime_ns) > TICK_S * 1e9:
                stamps[path] = stamp
            entries[path], places[entry.digest] = entry, real
        return Snapshot(self._folder, self._limits.code_url, entries, places, stamps)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode


def _entry(path: str, real: str, status: os.stat_result) -> Entry | None:
    try:
        with os.fdopen(log_paths.regular_descriptor(Path(real)), "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BundleRefusedError(f"{path!r} cannot be read: {error.strerror or error}.") from None
    return Entry(path, digest, bool(status.st_mode & stat.S_IXUSR), status.st_size)
