"""The lock under which the pool processes of a worker reopen connections for their reports, one after another.

Without it, tasks that end at the same moment need as many connections at once (docs/adr/0031).
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: The longest wait for the lock. A holder that is stopped, or cut off from the database, must not delay others for longer.
LONGEST_S = 5.0
#: Seconds between two attempts to get the lock.
PAUSE_S = 0.005


class ReportLock:
    """Create it in the worker before it forks its pool processes. The kernel releases the lock if its holder dies."""

    def __init__(self) -> None:
        # A POSIX lock belongs to a process, so all pool processes can use one inherited file.
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("reports")
        else:
            self._file, path = tempfile.mkstemp()
            Path(path).unlink()

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Hold the lock, or go on without it after LONGEST_S. Returns whether another process held it before."""
        held, contended = self._acquire()
        try:
            yield contended
        finally:
            if held:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _acquire(self) -> tuple[bool, bool]:
        """Whether this process holds the lock now, and whether it had to wait."""
        deadline, contended = time.monotonic() + LONGEST_S, False
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                contended = True
            except OSError:
                # User code has closed the file.
                return False, contended
            else:
                return True, contended
            if time.monotonic() >= deadline:
                return False, contended
            time.sleep(PAUSE_S)
