"""Finds DAG files: periodic full listings, and changes from inotify immediately."""

import contextlib
import errno
import logging
import math
import operator
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from inotify_simple import Event, INotify, flags

from scheduler.dagfiles.ignore import IGNORE_FILE, IgnoreFiles, content_of

#: A file is complete when its writer closes it or moves it here.
WHOLE = flags.CLOSE_WRITE | flags.MOVED_TO
MASK = (
    WHOLE | flags.CREATE | flags.MODIFY | flags.ATTRIB | flags.DELETE | flags.MOVED_FROM | flags.DELETE_SELF | flags.MOVE_SELF
    | flags.ONLYDIR
)  # fmt: skip
#: Seconds until an incomplete change (a file is empty, removed or partly written) is reported.
SETTLE_S = 0.05


class FolderEvents:
    """Watches folders with inotify. OSError if the kernel allows no watch, usually because a limit of inotify is reached."""

    def __init__(self) -> None:
        self._inotify = INotify(nonblocking=True)
        self._folders: dict[int, str] = {}
        self._written: set[str] = set()
        #: Paths with incomplete changes, and the time at which each is reported unless it changes again.
        self._unsettled: dict[str, float] = {}
        #: Cookie and path of the Python file that was moved away last.
        self._left = (0, "")
        #: Whether another file than a Python file was written, moved or removed. The reader resets it.
        self.has_other = False

    def fileno(self) -> int:
        """Return a descriptor for `select` that is readable when something changed."""
        return int(self._inotify.fileno())

    def watch(self, folder: str) -> None:
        """Watch a folder without its subfolders. If it is watched already under another path, the new path replaces the old one."""
        self._folders[self._inotify.add_watch(folder, MASK)] = folder

    def look(self) -> tuple[set[str], bool]:
        """Return the paths of the Python files written since the last call, and whether all files must be listed again."""
        for event in self._inotify.read(timeout=0):
            self._take(event)
        now = time.monotonic()
        settled = [path for path, at in self._unsettled.items() if at <= now]
        for path in settled:
            del self._unsettled[path]
        written, self._written = self._written, set()
        return written, bool(settled)

    def settles_in_s(self) -> float | None:
        """Return the seconds until the next incomplete change is reported; None if there is none."""
        return max(0.0, min(self._unsettled.values()) - time.monotonic()) if self._unsettled else None

    def close(self) -> None:
        self._inotify.close()

    def _take(self, event: Event) -> None:
        folder = self._folders.get(event.wd)
        if event.mask & flags.Q_OVERFLOW:
            self._unsettled[""] = 0.0
        elif event.mask & flags.IGNORED:
            # The folder was removed. Its removal has already requested a listing.
            self._folders.pop(event.wd, None)
        elif folder is None or not event.name:
            self._unsettled[""] = time.monotonic() + SETTLE_S
        elif event.name == IGNORE_FILE:
            self._unsettled[event.name] = 0.0 if event.mask & WHOLE else time.monotonic() + SETTLE_S
        elif not is_hidden(event.name):
            self._take_entry(event, os.path.join(folder, event.name))  # noqa: PTH118 - a path as os.scandir makes it

    def _take_entry(self, event: Event, path: str) -> None:
        is_python, has_come = path.endswith(".py"), event.mask & (flags.CREATE | flags.MOVED_TO)
        if event.mask & flags.ISDIR or os.path.islink(path):  # noqa: PTH114
            self._unsettled[path] = 0.0 if has_come else time.monotonic() + SETTLE_S
        elif is_python and event.mask & WHOLE:
            self._written.add(path)
            self._unsettled.pop(path, None)
            cookie, left = self._left
            if event.cookie and event.cookie == cookie:
                # A renamed file: if it were parsed before the old name is known to be gone, its DAGs would be in two files.
                self._unsettled[left] = 0.0
        elif is_python or event.mask & (flags.DELETE | flags.MOVED_FROM):
            self.has_other |= not is_python
            # The removed entry may have been a link to a folder.
            self._unsettled[path] = time.monotonic() + SETTLE_S
            if is_python and event.mask & flags.MOVED_FROM:
                self._left = (event.cookie, path)
        elif event.mask & WHOLE:
            self.has_other = True


def is_hidden(name: str) -> bool:
    """Whether files and folders of this name are ignored."""
    return name.startswith(".") or name == "__pycache__"


log = logging.getLogger(__name__)

#: Airflow's safe mode: a Python file is parsed only if it contains both.
MARKS = (re.compile(rb"dag", re.IGNORECASE), re.compile(rb"paceline|airflow|scheduler", re.IGNORECASE))
#: Seconds between two attempts to read an unreadable folder.
RETRY_S = 1.0
#: Seconds, longer than a tick of the clock for file times.
TICK_S = 0.02
#: rsync -t, cp -p and archives cannot set this time back.
CHANGE_TIME = operator.attrgetter("st_ctime")
#: Larger files are not searched for the marks.
MAX_SEARCHED_BYTES = 8 << 20
#: Paths are keys in the database, whose index accepts about 2,700 bytes.
MAX_PATH_BYTES = 1024
#: The errors of the kernel when a limit of inotify is reached.
EXHAUSTED = (errno.ENOSPC, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class Listing:
    """The DAG files, by path relative to the folder, with their change times. Not `complete` if some files are missing.

    `modules` are the other Python files. `again` holds the DAG files and modules that were written since the last listing without
    a new change time.
    """

    files: dict[str, datetime]
    modules: dict[str, datetime]
    complete: bool = True
    again: frozenset[str] = frozenset()

    def followed_by(self, later: "Listing") -> "Listing":
        """Merge this listing with a later one."""
        again = self.again | later.again
        if later.complete:
            return replace(later, again=again)
        return replace(self, files=self.files | later.files, modules=self.modules | later.modules, again=again)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A Python file at its last listing. `young`: it had just changed, so another write in the same tick keeps its time."""

    changed_at: datetime
    is_dag_file: bool
    young: bool


class Watch:
    """Watches a DAGs folder. A missing or unreadable folder is logged once and tried again.

    Files that an `.airflowignore` names are not DAG files. They are still modules, which DAG files can import.
    """

    def __init__(
        self,
        folder: Path,
        *,
        list_interval_s: float,
        check_interval_s: float | None = None,
        ignore_syntax: str = "glob",
        change_time: Callable[[os.stat_result], float] = CHANGE_TIME,
    ) -> None:
        """List the folder every `list_interval_s` seconds, and check it for unreported changes every `check_interval_s` seconds.

        `change_time` reads the time of the last change of a file, in seconds since 1970.
        """
        self._folder = folder
        self._ignore_syntax = ignore_syntax
        self._change_time = change_time
        self._ignored = self._no_rules()
        self._list_interval_s = list_interval_s
        self._check_interval_s = check_interval_s or list_interval_s
        self._next_check = math.inf
        self._next_listing = 0.0
        self._last: dict[str, _Seen] = {}
        self._marked: dict[str, tuple[tuple[int, int, int], bool]] = {}
        self._events: FolderEvents | None = None
        self._watched: tuple[int, int] | None = None
        self._logged: set[str] = set()

    def look(self) -> Listing | None:
        """Return a listing if one is due or if the folder has changed. None otherwise, and if the folder cannot be read."""
        due = time.monotonic() >= self._next_listing
        written, everything = self._changes()
        try:
            if due or everything or time.monotonic() >= self._next_check:
                listing, news = self._list_all(written)
            elif written:
                listing, news = self._list_written(written)
            else:
                return None
        except OSError as error:
            self._warn("folder", "The DAGs folder %s cannot be read: %s. Trying again.", self._folder, error.strerror)
            self._next_listing = time.monotonic() + RETRY_S
            return None
        self._recovered("folder", "The DAGs folder %s can be read again.", self._folder)
        if due:
            self._next_listing = time.monotonic() + self._list_interval_s
        return listing if due or news else None

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when the folder changes; None if it is not watched."""
        return None if self._events is None else self._events.fileno()

    def timeout_s(self) -> float | None:
        """Return the seconds after which to look again even without an event; None if not needed."""
        return None if self._events is None else self._events.settles_in_s()

    def other_changed(self) -> bool:
        """Whether another file than a Python file has changed since the last call, as far as the folder is watched."""
        changed = self._events is not None and self._events.has_other
        if self._events is not None:
            self._events.has_other = False
        return changed

    def dag_files(self) -> frozenset[str]:
        """The DAG files of the last listing."""
        return frozenset(name for name, file in self._last.items() if file.is_dag_file)

    def list_again(self) -> None:
        """Make the next look a full listing, like the first one."""
        self._next_listing = 0.0

    def close(self) -> None:
        """Stop watching."""
        if self._events is not None:
            self._events.close()
        self._events = self._watched = None

    def _changes(self) -> tuple[set[str], bool]:
        """Return the written paths, and whether all files must be listed because more may have changed."""
        written, everything = self._events.look() if self._events is not None else (set(), False)
        # inotify does not report that the folder was replaced, or a link to it switched.
        return written, everything or self._identity() not in (self._watched, None)

    def _list_all(self, written: Collection[str]) -> tuple[Listing, bool]:
        """List all Python files below the folder. Also returns whether the listing differs from the last one.

        OSError if the folder itself cannot be read.
        """
        self._start_watching()
        self._ignored = self._no_rules()
        seen: dict[str, _Seen] = {}
        complete = True
        visited = {self._identity()}
        pending = [str(self._folder)]
        while pending:
            folder = pending.pop()
            try:
                # Watch first and list second, so that no change in between is lost.
                self._watch(folder)
                self._ignored.open(folder)
                entries = list(os.scandir(folder))
            except OSError as error:
                if folder == str(self._folder):
                    raise
                complete = False
                self._warn(folder, "The folder %s cannot be read: %s.", folder, error.strerror)
                continue
            for entry in entries:
                status = self._entry(entry)
                if status is None:
                    continue
                if stat.S_ISREG(status.st_mode) and entry.name.endswith(".py"):
                    seen[self._name(entry.path)] = self._seen(entry.path, status)
                elif stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in visited:
                    visited.add((status.st_dev, status.st_ino))
                    pending.append(entry.path)
        self._next_check = time.monotonic() + self._check_interval_s
        again = self._again(seen, written)
        last, self._last = self._last, seen
        return _listing(seen, complete=complete, again=again), bool(again) or _times(seen) != _times(last)

    def _list_written(self, written: Collection[str]) -> tuple[Listing, bool]:
        """List only the written files, or all files if the kind of one of them has changed."""
        seen: dict[str, _Seen] = {}
        for path in written:
            try:
                status = os.stat(path)  # noqa: PTH116 - paths of events and listings are text
                whole = stat.S_ISREG(status.st_mode) and self._has_name(path)
                if whole:
                    seen[self._name(path)] = self._seen(path, status)
            except OSError:
                whole = False
            if not whole:
                return self._list_all(written)
        if any(name in self._last and self._last[name].is_dag_file != file.is_dag_file for name, file in seen.items()):
            return self._list_all(written)
        again = self._again(seen, written)
        last = _times(self._last)
        changed = {name: seen[name] for name, time_ in _times(seen).items() if name in again or last.get(name) != time_}
        self._last |= seen
        return _listing(changed, complete=False, again=again), bool(changed)

    def _again(self, seen: Mapping[str, _Seen], written: Collection[str]) -> frozenset[str]:
        """Return the names of files that were written since the last listing, but in the tick of that listing."""
        names = {self._name(path) for path in written} & seen.keys() & self._last.keys()
        return frozenset(name for name in names if self._last[name].young and self._last[name].changed_at == seen[name].changed_at)

    def _seen(self, path: str, status: os.stat_result) -> _Seen:
        changed_at = self._change_time(status)
        is_dag_file = not self._ignored.ignore(path) and self._is_dag_file(path, status)
        return _Seen(datetime.fromtimestamp(changed_at, UTC), is_dag_file, young=time.time() - changed_at < TICK_S)

    def _no_rules(self) -> IgnoreFiles:
        def warn(place: str, why: str) -> None:
            self._warn(place, "%s: %s. This line or file ignores nothing.", place, why)

        return IgnoreFiles(self._folder, self._ignore_syntax, warn)

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._folder}/")

    def _start_watching(self) -> None:
        """Watch the folder. If it was replaced by another one, the old one is no longer watched."""
        identity = self._identity()
        if identity == self._watched and self._events is not None:
            return
        self.close()
        # Stored even if watching fails; otherwise every look would see a new folder.
        self._watched = identity
        if identity is None:
            return
        try:
            self._events = FolderEvents()
        except OSError as error:
            self._give_up_watching(error)
        else:
            self._recovered("watch", "Changes in the DAGs folder %s are detected immediately again.", self._folder)

    def _watch(self, folder: str) -> None:
        """Watch a folder. OSError only for errors that listing it would raise too."""
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
        self._warn(
            "watch",
            "The DAGs folder %s cannot be watched (%s): new files are found every %g s.",
            self._folder,
            error,
            min(self._list_interval_s, self._check_interval_s),
        )

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._folder.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _entry(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        """Return the status of a directory entry, following links; None if it is ignored."""
        if is_hidden(entry.name):
            return None
        try:
            return entry.stat() if self._has_name(entry.path) else None
        except OSError:  # removed in the meantime, or a broken link
            return None

    def _has_name(self, path: str) -> bool:
        """Whether the database can store this path."""
        try:
            fits = len(self._name(path).encode()) <= MAX_PATH_BYTES
        except UnicodeEncodeError:
            self._warn(repr(path), "The file %r is not read: its name is not UTF-8.", path)
            return False
        if not fits:
            self._warn(repr(path), "The file %r is not read: its path has more than %d bytes.", path, MAX_PATH_BYTES)
        return fits

    def _is_dag_file(self, path: str, status: os.stat_result) -> bool:
        stamp = (status.st_ctime_ns, status.st_size, status.st_ino)
        known = self._marked.get(path)
        # A file that was written again in the tick of the last look has kept its stamp.
        if known is None or known[0] != stamp or time.time() - status.st_ctime < 2 * TICK_S:
            known = self._marked[path] = (stamp, _is_marked(Path(path)))
        return known[1]

    def _warn(self, key: str, message: str, *arguments: object) -> None:
        """Log a warning once, until `_recovered`."""
        if key not in self._logged:
            self._logged.add(key)
            log.warning(message, *arguments)

    def _recovered(self, key: str, message: str, *arguments: object) -> None:
        if key in self._logged:
            self._logged.discard(key)
            log.info(message, *arguments)


def dag_files(folder: Path, ignore_syntax: str) -> list[str] | None:
    """The DAG files of a folder that is not watched, by path relative to it; None if the folder cannot be read."""
    with contextlib.closing(Watch(folder, list_interval_s=1, ignore_syntax=ignore_syntax)) as watch:
        listing = watch.look()
    return None if listing is None else sorted(listing.files)


def _listing(seen: Mapping[str, _Seen], *, complete: bool, again: frozenset[str]) -> Listing:
    return Listing(
        {name: file.changed_at for name, file in seen.items() if file.is_dag_file},
        {name: file.changed_at for name, file in seen.items() if not file.is_dag_file},
        complete,
        again,
    )


def _times(seen: Mapping[str, _Seen]) -> dict[str, tuple[datetime, bool]]:
    return {name: (file.changed_at, file.is_dag_file) for name, file in seen.items()}


def _is_marked(path: Path) -> bool:
    try:
        content = content_of(path, MAX_SEARCHED_BYTES)
    except OSError:
        return True  # parsing it in a child reports the error
    # Without NULs, so that a file in UTF-16 is found too and its encoding is reported as an import error.
    return content is None or all(mark.search(content.replace(b"\0", b"")) for mark in MARKS)
