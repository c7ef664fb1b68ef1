"""The pidfile of a running process: a locked file, with the Unix socket of the health server beside it.

The kernel releases the lock when the last process with the file open has ended: the process itself and the pool processes that it
forked, which may still run user code. If a process can lock such a file, its owner has ended; nothing has to wait for a timeout.
"""

import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

log = logging.getLogger("paceline.pidfile")

MARK, SOCKET = ".mark", ".health"


class Pidfile:
    """The pidfile of this process, from `take` until `leave`. If it cannot be created, the error is logged and ignored."""

    def __init__(self, folder: Path, role: str) -> None:
        self._host = socket.gethostname()
        self._role = role
        self._path = folder / f"{role}-{os.getpid()}{MARK}"
        self._descriptor: int | None = None
        self._pid = os.getpid()
        self._ended: list[str] = []

    @property
    def socket(self) -> Path:
        """The path of the Unix socket of the health server."""
        return self._path.with_suffix(SOCKET)

    def take(self) -> "Pidfile":
        """Create and lock the pidfile, and collect the processes of this role that have ended without removing theirs."""
        try:
            _private(self._path.parent)
            for path, descriptor in _unlocked(sorted(self._path.parent.glob(f"{self._role}-*{MARK}"))):
                self._expire(path, descriptor)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            log.warning("cannot create a pidfile in %s: %s; `paceline doctor --role %s` will not find this process",
                        self._path.parent, error.strerror, self._role)  # fmt: skip
        return self

    def note(self, process_id: str) -> None:
        """Write the ID under which this process is registered now."""
        if self._descriptor is not None:
            text = json.dumps({"host": self._host, "id": process_id}).encode()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)

    def take_ended(self) -> list[str]:
        """Return the registry IDs of processes of this host and role that have certainly ended. Each is returned once."""
        ended, self._ended = self._ended, []
        return ended

    def leave(self) -> None:
        """Remove the pidfile. Does nothing in a forked process."""
        if self._descriptor is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self.socket.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _expire(self, path: Path, descriptor: int) -> None:
        try:
            owner = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
        except (ValueError, RecursionError):
            owner = {}
        # Machines may share the folder without sharing its locks.
        if owner.get("host") == self._host:
            self._ended.append(owner["id"])
            path.unlink(missing_ok=True)
            path.with_suffix(SOCKET).unlink(missing_ok=True)


def sockets(folder: Path, role: str) -> list[Path]:
    """Return the health sockets of this role. Sockets of ended processes may be among them, and refuse connections."""
    return sorted(folder.glob(f"{role}-*{SOCKET}"))


def _unlocked(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Yield each pidfile that is not locked, with a descriptor that locks it during the iteration."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path, descriptor
            finally:
                os.close(descriptor)


def _private(folder: Path) -> None:
    """Create the folder. PermissionError if it belongs to another user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat(follow_symlinks=False)
    if os.geteuid() not in (0, status.st_uid):
        raise PermissionError(1, "it belongs to another user")
