"""The mark of a running process on this machine: a locked file, and beside it a socket that answers how the process is.

The kernel drops the lock when the last process that has it open is gone: the process itself and the pool children it forked,
which may still run user code. So whoever gets the lock of such a file knows, without waiting, that what is written in it is dead.
"""

import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

log = logging.getLogger("paceline.presence")

MARK, SOCKET = ".mark", ".health"


class Pidfile:
    """The mark of this process, from `take` until `leave`. One that cannot be made is said and then done without."""

    def __init__(self, folder: Path, role: str) -> None:
        self._host = socket.gethostname()
        self._role = role
        self._path = folder / f"{role}-{os.getpid()}{MARK}"
        self._descriptor: int | None = None
        self._pid = os.getpid()
        self._dead: list[str] = []

    @property
    def socket(self) -> Path:
        """Where the process answers how it is."""
        return self._path.with_suffix(SOCKET)

    def take(self) -> "Pidfile":
        """Make the mark; find out who is dead."""
        try:
            _private(self._path.parent)
            for path, descriptor in _unlocked(sorted(self._path.parent.glob(f"{self._role}-*{MARK}"))):
                self._expire(path, descriptor)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            log.warning("No mark of this process in %s: %s; `paceline doctor --role %s` will not find it",
                        self._path.parent, error.strerror, self._role)  # fmt: skip
        return self

    def note(self, process_id: str) -> None:
        """Under this id of the registry it works from now on."""
        if self._descriptor is not None:
            text = json.dumps({"host": self._host, "id": process_id}).encode()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)

    def take_dead(self) -> list[str]:
        """Ids in the registry of processes of this host and role that are dead for certain; each is told once."""
        dead, self._dead = self._dead, []
        return dead

    def leave(self) -> None:
        """Take the mark away; a process that was forked from this one leaves it."""
        if self._descriptor is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self.socket.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _expire(self, path: Path, descriptor: int) -> None:
        try:
            found = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
        except ValueError:
            found = {}
        # A folder may be shared by machines, and locks need not be.
        if found.get("host") == self._host:
            self._dead.append(found["id"])
            path.unlink(missing_ok=True)
            path.with_suffix(SOCKET).unlink(missing_ok=True)


def sockets(folder: Path, role: str) -> list[Path]:
    """Where the processes of this role answer; those of dead ones are among them, and refuse."""
    return sorted(folder.glob(f"{role}-*{SOCKET}"))


def _unlocked(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Marks that nobody holds, each with a descriptor that holds it meanwhile."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path, descriptor
            finally:
                os.close(descriptor)


def _private(folder: Path) -> None:
    """Make the folder; refuse one that another user put there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat(follow_symlinks=False)
    if os.geteuid() not in (0, found.st_uid):
        raise PermissionError(1, "it belongs to somebody else")
