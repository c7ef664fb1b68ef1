"""The folder in which a JVM keeps its files: removed with it, or, if it was killed, when the next one starts."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "paceline-jvm-"


class Scratch:
    """A new folder that only its user can read, held as long as this process lives."""

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock: int | None = _held(self.path)

    def remove(self) -> None:
        """Remove it, once the JVM has ended."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            with contextlib.suppress(OSError):  # a task has closed it
                os.close(self._lock)
            self._lock = None


def _held(folder: Path) -> int:
    """A lock in it, which the system gives back however this process ends.

    It gets its name only once it is held: before, the sweep of another process would find it free.
    """
    lock = os.open(folder / "unheld", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "unheld").rename(folder / "lock")
    return lock


def _sweep() -> None:
    """Remove what killed processes left: Spark keeps its blocks, artifacts and copies of jars there."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with contextlib.suppress(OSError):  # in use, somebody else's, or removed by another sweep
            if path.parent.lstat().st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent)
            finally:
                os.close(lock)
