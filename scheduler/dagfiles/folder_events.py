"""Changes in a tree of folders, from inotify: the Python files that were written, and whether all files must be listed."""

import os
import time

from inotify_simple import Event, INotify, flags

from scheduler.dagfiles.ignore import IGNORE_FILE

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
            # The removed entry may have been a link to a folder.
            self._unsettled[path] = time.monotonic() + SETTLE_S
            if is_python and event.mask & flags.MOVED_FROM:
                self._left = (event.cookie, path)


def is_hidden(name: str) -> bool:
    """Whether files and folders of this name are ignored."""
    return name.startswith(".") or name == "__pycache__"
