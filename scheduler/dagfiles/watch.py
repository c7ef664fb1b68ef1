"""Which DAG files there are: a full listing now and then, and one at once when the folder changes (inotify)."""

import logging
import os
import re
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

log = logging.getLogger(__name__)

#: Airflow's safe mode: a Python file is read only if it names both.
MARKS = (re.compile(rb"dag", re.IGNORECASE), re.compile(rb"scheduler|airflow", re.IGNORECASE))
#: How often a folder that cannot be read is tried again.
RETRY_S = 1.0
#: Longer than a tick of the clock that the file system takes its times from.
TICK_S = 0.02
_NOTIFY_ERRORS = (OSError, WatchfilesRustInternalError)


@dataclass(frozen=True, slots=True)
class Listing:
    """The DAG files by path relative to the folder, and when each last changed; not `complete` if a part could not be read."""

    files: dict[str, datetime]
    complete: bool = True


class Watch:
    """Looks at one DAGs folder; a folder that is missing or unreadable is said once and tried again."""

    def __init__(self, folder: Path, *, list_interval_s: float) -> None:
        self._folder = folder
        self._list_interval_s = list_interval_s
        self._next_listing = 0.0
        self._changed = False
        self._last: Listing | None = None
        self._marked: dict[str, tuple[tuple[int, int, int], bool]] = {}
        self._notify: RustNotify | None = None
        self._watched: tuple[int, int] | None = None
        self._said: set[str] = set()

    def look(self) -> Listing | None:
        """A listing if the regular one is due or if it differs from the last; None also if the folder cannot be read."""
        due = time.monotonic() >= self._next_listing
        if not self.changed() and not due:
            return None
        if self._changed:
            # Times of files advance in ticks of up to 10 ms: what is written in the tick of the listing looks unchanged.
            time.sleep(TICK_S)
        # Watch first, list second: what changes in between is noticed, not lost.
        self._watch_folder()
        self._changed = False
        try:
            listing = self._list()
        except OSError as error:
            self._say("folder", "The DAGs folder %s cannot be read: %s. Trying again.", self._folder, error.strerror)
            self._next_listing = time.monotonic() + RETRY_S
            return None
        self._unsay("folder", "The DAGs folder %s can be read again.", self._folder)
        if due:
            self._next_listing = time.monotonic() + self._list_interval_s
        elif listing == self._last:
            return None
        self._last = listing
        return listing

    def changed(self) -> bool:
        """Whether something has happened in the folder since the last listing. Takes some 2 ms."""
        # A folder that was replaced, or a link to it that was switched, is another one; inotify says nothing of that.
        self._changed = self._changed or self._identity() not in (self._watched, None)
        if self._notify is not None and not self._changed:
            try:
                events = self._notify.watch(5, 1, 1, None)
            except _NOTIFY_ERRORS as error:
                self._give_up_watching(error)
                return False
            self._changed = not isinstance(events, str) and any(_matters(Path(path)) for _, path in events)
        return self._changed

    def close(self) -> None:
        """Stop watching."""
        if self._notify is not None:
            self._notify.close()
        self._notify = self._watched = None

    def _watch_folder(self) -> None:
        found = self._identity()
        if found == self._watched and self._notify is not None:
            return
        self.close()
        # Remembered even if watching fails, or every look would take the folder for a new one.
        self._watched = found
        if found is None:
            return
        try:
            self._notify = RustNotify([str(self._folder)], False, False, 0, True, True)
        except _NOTIFY_ERRORS as error:
            self._give_up_watching(error)
        else:
            self._unsay("watch", "Changes in the DAGs folder %s are noticed at once again.", self._folder)

    def _give_up_watching(self, error: Exception) -> None:
        watched = self._watched
        self.close()
        self._watched = watched
        self._say(
            "watch",
            "The DAGs folder %s cannot be watched (%s): new files are found every %g s.",
            self._folder,
            error,
            self._list_interval_s,
        )

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._folder.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _list(self) -> Listing:
        """Every DAG file below the folder. OSError if the folder itself cannot be read."""
        files: dict[str, datetime] = {}
        complete = True
        seen = {self._identity()}
        pending = [self._folder]
        while pending:
            folder = pending.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError as error:
                if folder == self._folder:
                    raise
                complete = False
                self._say(str(folder), "The folder %s cannot be read: %s.", folder, error.strerror)
                continue
            for entry in entries:
                found = self._entry(entry)
                if found is None:
                    continue
                if stat.S_ISREG(found.st_mode) and self._is_dag_file(entry.path, found):
                    # The change time, which rsync -t, cp -p and archives cannot set back.
                    files[os.path.relpath(entry.path, self._folder)] = datetime.fromtimestamp(found.st_ctime, UTC)
                elif stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    pending.append(Path(entry.path))
        return Listing(files, complete)

    def _entry(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        """The file or folder behind a directory entry, links followed; None if it does not concern us."""
        if _is_hidden(entry.name):
            return None
        try:
            entry.path.encode()
            return entry.stat()
        except UnicodeEncodeError:
            self._say(repr(entry.path), "The file %r is not read: its name is not UTF-8.", entry.path)
        except OSError:  # gone since, or a link that leads nowhere
            pass
        return None

    def _is_dag_file(self, path: str, found: os.stat_result) -> bool:
        if not path.endswith(".py"):
            return False
        stamp = (found.st_ctime_ns, found.st_size, found.st_ino)
        known = self._marked.get(path)
        if known is None or known[0] != stamp:
            known = self._marked[path] = (stamp, _is_marked(Path(path)))
        return known[1]

    def _say(self, key: str, message: str, *arguments: object) -> None:
        if key not in self._said:
            self._said.add(key)
            log.warning(message, *arguments)

    def _unsay(self, key: str, message: str, *arguments: object) -> None:
        if key in self._said:
            self._said.discard(key)
            log.info(message, *arguments)


def _is_marked(path: Path) -> bool:
    try:
        # Without NULs, so that a file in UTF-16 is recognised, and its author told, too.
        content = path.read_bytes().replace(b"\0", b"")
    except OSError:
        return True  # reading it in a child says what is wrong with it
    return all(mark.search(content) for mark in MARKS)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _matters(path: Path) -> bool:
    """Whether an event of this path may change a listing: Python files, folders, links and what was removed."""
    if path.is_symlink():
        return True
    if any(_is_hidden(part) for part in path.parts[-2:]):
        return False
    return path.suffix == ".py" or path.is_dir() or (not path.suffix and not path.exists())
