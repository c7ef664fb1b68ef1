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
#: Bytes of the file: the first is locked by the process that has its turn, the second is shared by those that wait for theirs.
TURN_AT, WAITING_AT = 0, 1


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
    def turn(self) -> Iterator[None]:
        """Hold the lock, or go on without it after LONGEST_S."""
        held = self._acquire()
        try:
            yield
        finally:
            if held:
                self._unlock(TURN_AT)

    def others_wait(self) -> bool:
        """Whether another process waits for its turn now."""
        if self._lock(fcntl.LOCK_EX, WAITING_AT) is False:
            return True
        self._unlock(WAITING_AT)
        return False

    def _acquire(self) -> bool:
        """Whether this process holds the lock now."""
        deadline = time.monotonic() + LONGEST_S
        waiting = False
        try:
            # None: user code has closed the file.
            while (held := self._lock(fcntl.LOCK_EX, TURN_AT)) is False and time.monotonic() < deadline:
                # It fails while `others_wait` looks, so it is repeated.
                waiting = waiting or bool(self._lock(fcntl.LOCK_SH, WAITING_AT))
                time.sleep(PAUSE_S)
        finally:
            if waiting:
                self._unlock(WAITING_AT)
        return bool(held)

    def _lock(self, kind: int, at: int) -> bool | None:
        """Whether this process has locked that byte; None if it cannot be locked at all."""
        try:
            fcntl.lockf(self._file, kind | fcntl.LOCK_NB, 1, at)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            return None
        return True

    def _unlock(self, at: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, at)
