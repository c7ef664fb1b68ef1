"""The temporary folder of a JVM. It is removed with the JVM, or when the next one starts if the process was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "paceline-jvm-"


class Scratch:
    """A new folder that only this user can read, locked for the lifetime of this process."""

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock: int | None = _locked(self.path)

    def remove(self) -> None:
        """Remove the folder, after the JVM has ended."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            with contextlib.suppress(OSError):  # a task may have closed it
                os.close(self._lock)
            self._lock = None


def _locked(folder: Path) -> int:
    """Create and lock a file in the folder. The system releases the lock when this process ends in any way.

    The file gets its name only once it is locked, so that the sweep of another process cannot find it unlocked.
    """
    lock = os.open(folder / "unlocked", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "unlocked").rename(folder / "lock")
    return lock


def _sweep() -> None:
    """Remove the folders of killed processes, in which Spark stored blocks, artifacts and copies of jars."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with contextlib.suppress(OSError):  # in use, of another user, or removed by another sweep
            if path.parent.lstat().st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent)
            finally:
                os.close(lock)
