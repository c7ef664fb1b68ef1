"""Lets the pool processes of a worker open connections for reports one after another, when many need one at the same time."""

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: The longest wait for one holder. One that is stopped, or cut off from the database, must not delay others for longer.
LONGEST_S = 5.0
#: Seconds between two attempts to get the lock: at first, and at most. The pauses grow because many may wait on few processors.
PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.05
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
        #: The monotonic time at which the current or the last turn began, shared by all pool processes.
        self._began_at = mmap.mmap(-1, struct.calcsize("d"))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock, or continue without it if one holder keeps it for LONGEST_S."""
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
        asked_at, pause_s, waiting = time.monotonic(), PAUSE_S, False
        try:
            # None: user code has closed the file.
            while (held := self._lock(fcntl.LOCK_EX, TURN_AT)) is False:
                # In a burst, a slow database serves one holder after another: each new turn allows another LONGEST_S.
                if time.monotonic() >= max(asked_at, *struct.unpack("d", self._began_at[:])) + LONGEST_S:
                    break
                # It fails while `others_wait` looks, so it is repeated.
                waiting = waiting or bool(self._lock(fcntl.LOCK_SH, WAITING_AT))
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)
        finally:
            if waiting:
                self._unlock(WAITING_AT)
        if held:
            self._began_at[:] = struct.pack("d", time.monotonic())
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
