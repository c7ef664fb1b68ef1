"""The DAGs folder as a version of a bundle: its files by their content, read again only where they changed."""

import hashlib
import logging
import os
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scheduler.dagfiles import bundle_files
from scheduler.dagfiles.bundle_files import BundleRefusedError
from scheduler.settings import log_paths
from scheduler.settings.sections import Bundles
from scheduler.store.dags.bundles import Entry

log = logging.getLogger(__name__)

#: Seconds, longer than a tick of the clock for file times: a file that was written in the tick of a look may change unseen.
TICK_S = 0.02


class ChangedError(Exception):
    """A file changed after the folder was looked at."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The folder at one moment: its files by path, and where each content is."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    def differs(self, later: "Snapshot", paths: Collection[str]) -> bool:
        """Whether one of these files is another one later."""
        return any(self.entries.get(path) != later.entries.get(path) for path in paths)

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


class PinnedFolder:
    """Looks at a DAGs folder. One that could be no bundle is not pinned, which is logged once: its runs execute what is there."""

    def __init__(self, folder: Path, limits: Bundles) -> None:
        self._folder = folder
        self._limits = limits
        #: By path: the stamp of a file whose entry is known.
        self._known: dict[str, tuple[tuple[int, ...], Entry]] = {}
        self._refused: str | None = None

    def look(self) -> Snapshot | None:
        """The folder as it is now; None if it cannot be pinned."""
        try:
            found = self._look()
        except BundleRefusedError as refused:
            if self._refused != str(refused):
                log.warning("The DAGs folder is not pinned, so runs execute what it has when a task starts: %s", refused)
            self._refused = str(refused)
            return None
        self._refused = None
        return found

    def _look(self) -> Snapshot:
        entries, places, known = dict[str, Entry](), dict[str, str](), dict[str, tuple[tuple[int, ...], Entry]]()
        now = time.time_ns()
        for path, real, status in bundle_files.list_folder(self._folder, self._limits):
            stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode)
            last = self._known.get(path)
            entry = last[1] if last is not None and last[0] == stamp else _entry(path, real, status)
            if entry is None:
                continue  # it was removed meanwhile
            if now - max(status.st_mtime_ns, status.st_ctime_ns) > TICK_S * 1e9:
                known[path] = stamp, entry
            entries[path], places[entry.digest] = entry, real
        self._known = known
        return Snapshot(entries, places)


def _entry(path: str, real: str, status: os.stat_result) -> Entry | None:
    try:
        with os.fdopen(log_paths.regular_descriptor(Path(real)), "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BundleRefusedError(f"{path!r} cannot be read: {error.strerror or error}.") from None
    return Entry(path, digest, bool(status.st_mode & stat.S_IXUSR), status.st_size)
