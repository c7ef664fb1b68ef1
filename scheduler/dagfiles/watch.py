"""Which DAG files there are: a full listing now and then, and what was written or removed at once (inotify)."""

import errno
import logging
import math
import os
import re
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from scheduler.dagfiles.folder_events import FolderEvents, is_hidden

log = logging.getLogger(__name__)

#: Airflow's safe mode: a Python file is read only if it names both.
MARKS = (re.compile(rb"dag", re.IGNORECASE), re.compile(rb"scheduler|airflow", re.IGNORECASE))
#: How often a folder that cannot be read is tried again.
RETRY_S = 1.0
#: Longer than a tick of the clock that file systems take their times from.
TICK_S = 0.02
#: Larger files are not searched for the marks.
MAX_LOOKED_AT_BYTES = 8 << 20
#: A path is a key of the database, whose index takes no more than about 2,700 bytes.
MAX_PATH_BYTES = 1024
#: What the kernel says when a limit of inotify is reached.
EXHAUSTED = (errno.ENOSPC, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class Listing:
    """The DAG files by path relative to the folder, and when each last changed; not `complete` if it does not tell of all.

    `modules`: the same of the other Python files. `again`: DAG files and modules that were written since the last listing
    although their time has stayed the same.
    """

    files: dict[str, datetime]
    modules: dict[str, datetime]
    complete: bool = True
    again: frozenset[str] = frozenset()

    def followed_by(self, later: "Listing") -> "Listing":
        """Both in one."""
        again = self.again | later.again
        if later.complete:
            return replace(later, again=again)
        return replace(self, files=self.files | later.files, modules=self.modules | later.modules, again=again)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A Python file at its last listing. `young`: its time was hardly over, and what is written in the same tick keeps it."""

    changed_at: datetime
    is_dag_file: bool
    young: bool


class Watch:
    """Looks at one DAGs folder; a folder that is missing or unreadable is said once and tried again."""

    def __init__(self, folder: Path, *, list_interval_s: float, check_interval_s: float | None = None) -> None:
        """List the folder every `list_interval_s`; and look whether it differs, where the kernel may not have told of it, every
        `check_interval_s`.
        """
        self._folder = folder
        self._list_interval_s = list_interval_s
        self._check_interval_s = check_interval_s or list_interval_s
        self._next_check = math.inf
        self._next_listing = 0.0
        self._last: dict[str, _Seen] = {}
        self._marked: dict[str, tuple[tuple[int, int, int], bool]] = {}
        self._events: FolderEvents | None = None
        self._watched: tuple[int, int] | None = None
        self._said: set[str] = set()

    def look(self) -> Listing | None:
        """A listing if the regular one is due or if anything differs from the last; None also if the folder cannot be read."""
        due = time.monotonic() >= self._next_listing
        written, everything = self._happened()
        try:
            if due or everything or time.monotonic() >= self._next_check:
                listing, news = self._list_all(written)
            elif written:
                listing, news = self._list_written(written)
            else:
                return None
        except OSError as error:
            self._say("folder", "The DAGs folder %s cannot be read: %s. Trying again.", self._folder, error.strerror)
            self._next_listing = time.monotonic() + RETRY_S
            return None
        self._unsay("folder", "The DAGs folder %s can be read again.", self._folder)
        if due:
            self._next_listing = time.monotonic() + self._list_interval_s
        return listing if due or news else None

    def fileno(self) -> int | None:
        """Readable when something happened in the folder; None if it is not watched."""
        return None if self._events is None else self._events.fileno()

    def patience_s(self) -> float | None:
        """Seconds after which to look again even if nothing more happens; None if nothing asks for it."""
        return None if self._events is None else self._events.settles_in_s()

    def list_again(self) -> None:
        """Let the next look be a full one, as if nothing had been told yet."""
        self._next_listing = 0.0

    def close(self) -> None:
        """Stop watching."""
        if self._events is not None:
            self._events.close()
        self._events = self._watched = None

    def _happened(self) -> tuple[set[str], bool]:
        """Paths that were written, and whether everything must be listed because more than that may have changed."""
        written, everything = self._events.look() if self._events is not None else (set(), False)
        # A folder that was replaced, or a link to it that was switched, is another one; inotify says nothing of that.
        return written, everything or self._identity() not in (self._watched, None)

    def _list_all(self, written: Collection[str]) -> tuple[Listing, bool]:
        """Every Python file below the folder, and whether anything differs from the last listing. OSError if the folder itself
        cannot be read.
        """
        self._start_watching()
        seen: dict[str, _Seen] = {}
        complete = True
        visited = {self._identity()}
        pending = [str(self._folder)]
        while pending:
            folder = pending.pop()
            try:
                # Watch first, list second: what changes in between is noticed, not lost.
                self._watch(folder)
                entries = list(os.scandir(folder))
            except OSError as error:
                if folder == str(self._folder):
                    raise
                complete = False
                self._say(folder, "The folder %s cannot be read: %s.", folder, error.strerror)
                continue
            for entry in entries:
                found = self._entry(entry)
                if found is None:
                    continue
                if stat.S_ISREG(found.st_mode) and entry.name.endswith(".py"):
                    seen[self._name(entry.path)] = self._seen(entry.path, found)
                elif stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in visited:
                    visited.add((found.st_dev, found.st_ino))
                    pending.append(entry.path)
        self._next_check = time.monotonic() + self._check_interval_s
        again = self._again(seen, written)
        last, self._last = self._last, seen
        return _listing(seen, complete=complete, again=again), bool(again) or _times(seen) != _times(last)

    def _list_written(self, written: Collection[str]) -> tuple[Listing, bool]:
        """Just the files that were written; everything if one of them has become something else."""
        seen: dict[str, _Seen] = {}
        for path in written:
            try:
                found = os.stat(path)  # noqa: PTH116 - paths of events and listings are text
                whole = stat.S_ISREG(found.st_mode) and self._has_name(path)
                if whole:
                    seen[self._name(path)] = self._seen(path, found)
            except OSError:
                whole = False
            if not whole:
                return self._list_all(written)
        if any(name in self._last and self._last[name].is_dag_file != one.is_dag_file for name, one in seen.items()):
            return self._list_all(written)
        again = self._again(seen, written)
        last = _times(self._last)
        news = {name: seen[name] for name, time_ in _times(seen).items() if name in again or last.get(name) != time_}
        self._last |= seen
        return _listing(news, complete=False, again=again), bool(news)

    def _again(self, seen: Mapping[str, _Seen], written: Collection[str]) -> frozenset[str]:
        """Names of what was written since the last listing, in the tick of that listing."""
        names = {self._name(path) for path in written} & seen.keys() & self._last.keys()
        return frozenset(name for name in names if self._last[name].young and self._last[name].changed_at == seen[name].changed_at)

    def _seen(self, path: str, found: os.stat_result) -> _Seen:
        # The change time, which rsync -t, cp -p and archives cannot set back.
        young = time.time() - found.st_ctime < TICK_S
        return _Seen(datetime.fromtimestamp(found.st_ctime, UTC), self._is_dag_file(path, found), young)

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._folder}/")

    def _start_watching(self) -> None:
        """Watch this folder from now on; if it was another one until now, forget that."""
        found = self._identity()
        if found == self._watched and self._events is not None:
            return
        self.close()
        # Remembered even if watching fails, or every look would take the folder for a new one.
        self._watched = found
        if found is None:
            return
        try:
            self._events = FolderEvents()
        except OSError as error:
            self._give_up_watching(error)
        else:
            self._unsay("watch", "Changes in the DAGs folder %s are noticed at once again.", self._folder)

    def _watch(self, folder: str) -> None:
        """OSError only if listing it would say the same."""
        try:
            if self._events is not None:
                self._events.watch(folder)
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self._give_up_watching(error)

    def _give_up_watching(self, error: Exception) -> None:
        watched = self._watched
        self.close()
        self._watched = watched
        self._say(
            "watch",
            "The DAGs folder %s cannot be watched (%s): new files are found every %g s.",
            self._folder,
            error,
            min(self._list_interval_s, self._check_interval_s),
        )

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._folder.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _entry(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        """The file or folder behind a directory entry, links followed; None if it does not concern us."""
        if is_hidden(entry.name):
            return None
        try:
            return entry.stat() if self._has_name(entry.path) else None
        except OSError:  # gone since, or a link that leads nowhere
            return None

    def _has_name(self, path: str) -> bool:
        """Whether the database can keep this path."""
        try:
            fits = len(self._name(path).encode()) <= MAX_PATH_BYTES
        except UnicodeEncodeError:
            self._say(repr(path), "The file %r is not read: its name is not UTF-8.", path)
            return False
        if not fits:
            self._say(repr(path), "The file %r is not read: its path has more than %d bytes.", path, MAX_PATH_BYTES)
        return fits

    def _is_dag_file(self, path: str, found: os.stat_result) -> bool:
        stamp = (found.st_ctime_ns, found.st_size, found.st_ino)
        known = self._marked.get(path)
        # What was written in the tick of its last look has kept its stamp.
        if known is None or known[0] != stamp or time.time() - found.st_ctime < 2 * TICK_S:
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


def _listing(seen: Mapping[str, _Seen], *, complete: bool, again: frozenset[str]) -> Listing:
    return Listing(
        {name: one.changed_at for name, one in seen.items() if one.is_dag_file},
        {name: one.changed_at for name, one in seen.items() if not one.is_dag_file},
        complete,
        again,
    )


def _times(seen: Mapping[str, _Seen]) -> dict[str, tuple[datetime, bool]]:
    return {name: (one.changed_at, one.is_dag_file) for name, one in seen.items()}


def _is_marked(path: Path) -> bool:
    try:
        content = _content(path)
    except OSError:
        return True  # reading it in a child says what is wrong with it
    # Without NULs, so that a file in UTF-16 is recognized, and its author told, too.
    return content is None or all(mark.search(content.replace(b"\0", b"")) for mark in MARKS)


def _content(path: Path) -> bytes | None:
    """The text of a file, None if it is too large to be looked at here: a child reads it under its limits."""
    # It may have become a pipe since it was looked at, which must not be waited for.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        content = file.read(MAX_LOOKED_AT_BYTES + 1)
    return None if len(content) > MAX_LOOKED_AT_BYTES else content
