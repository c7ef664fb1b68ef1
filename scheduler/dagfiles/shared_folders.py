"""Folders that are made once on a machine and shared by its processes: a bounded cache, from which none in use is removed.

`<name>/` gets this name when it is complete. `<name>.lock` is locked by the process that makes or removes the folder, and shared by
each process that uses it. Its time says when the folder was last needed, and its text since which start of the machine it is
complete: a power failure can empty files that were just written.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

#: Names this start of the machine.
BOOT = Path("/proc/sys/kernel/random/boot_id")


class SharedFolders:
    """Makes the folders, and removes the least recently used ones that no process uses.

    Any number of processes may share `folder`, and threads one SharedFolders.
    """

    def __init__(self, folder: Path, *, keep: int, removed: Callable[[str], None] = lambda name: None) -> None:
        """The `keep` folders that were needed last stay, and those in use. `removed` is called for each one that makes room."""
        self._folder = folder
        self._keep = keep
        self._removed = removed
        self._boot = BOOT.read_bytes() if BOOT.exists() else b"unknown"

    def path(self, name: str) -> Path:
        """Where a folder is, or would be."""
        return self._folder / name

    def hold(self, name: str, make: Callable[[Path], object]) -> int:
        """Make a folder unless it exists, and keep it until the returned descriptor is closed, also in forked processes.

        `make` fills an empty folder, which gets its name afterwards. No other process makes the same one meanwhile.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            lock = _locked(self._lock_file(name), fcntl.LOCK_SH)
            if self._is_complete(name, lock):
                os.utime(lock)
                return lock
            os.close(lock)
            with _closing(_locked(self._lock_file(name), fcntl.LOCK_EX)) as lock:
                if not self._is_complete(name, lock):  # another process may have made it
                    self._make(name, make)
                    os.pwrite(lock, self._boot, 0)
            self._collect(without=name)

    def names(self) -> list[str]:
        """The complete folders on this machine, those that were needed last first."""
        times: dict[str, float] = {}
        for path in self._folder.iterdir():
            if path.suffix != ".lock" and not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    times[path.name] = self._lock_file(path.name).stat().st_mtime
        return sorted(times, key=lambda name: times[name], reverse=True)

    def _is_complete(self, name: str, lock: int) -> bool:
        return self.path(name).is_dir() and os.pread(lock, len(self._boot), 0) == self._boot

    def _make(self, name: str, make: Callable[[Path], object]) -> None:
        unfinished = self._folder / f".{name}"
        _remove(unfinished)  # of a process that was killed
        _remove(self.path(name))  # from before the machine was started again
        try:
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(self.path(name))
        except BaseException:
            _remove(unfinished)
            raise

    def _collect(self, *, without: str) -> None:
        """Remove the least recently used folders, except for those in use, and what killed processes have left."""
        unfinished = [path.name[1:] for path in self._folder.iterdir() if path.name.startswith(".")]
        for name in (*self.names()[self._keep :], *unfinished):
            if name == without:
                continue
            with contextlib.suppress(BlockingIOError), _closing(_locked(self._lock_file(name), fcntl.LOCK_EX | fcntl.LOCK_NB)):
                # Under another name first: what a killed process leaves must not look complete.
                _remove(self._folder / f".{name}")
                with contextlib.suppress(FileNotFoundError):
                    self.path(name).rename(self._folder / f".{name}")
                    self._removed(name)
                _remove(self._folder / f".{name}")
                self._lock_file(name).unlink()

    def _lock_file(self, name: str) -> Path:
        return self._folder / f"{name}.lock"


def _locked(path: Path, how: int) -> int:
    """The descriptor of this file, locked. BlockingIOError as for flock."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, how)
            # Its holder may have removed it in the meantime.
            if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder that may be read-only, or not exist."""
    for below, _, _ in os.walk(folder):
        Path(below).chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
