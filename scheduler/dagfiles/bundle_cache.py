"""The bundle versions on this machine: read-only folders below `<PACELINE_HOME>/bundles`, which its processes share.

`<digest>/` has the files of a version; it gets this name when it is complete. `<digest>.lock` is locked by the process that makes
or removes the folder, and shared by each process that uses it. Its time says when the version was last needed, and its text
since which start of the machine the folder is complete: a power failure can empty files that were just written.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from paceline.exceptions import PacelineError
from scheduler.settings import Settings
from scheduler.store.dags import bundles
from scheduler.store.dags.bundles import Entry
from scheduler.store.db.rows import EngineReader, Reader

log = logging.getLogger("paceline.bundles")

#: How many files are read from the store at once.
BATCH = 64
#: How many of the versions that were needed last are searched for files of a new version.
NEIGHBORS = 3
#: Names this start of the machine.
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Contents(Protocol):
    """The store of bundle versions."""

    def digest(self, version_id: int) -> str:
        """The digest of a version. NotFoundError if there is no such version."""

    def tree(self, version_id: int) -> Sequence[Entry]:
        """The files of a version."""

    def blobs(self, digests: Collection[str]) -> Iterable[tuple[str, bytes]]:
        """The contents with these digests."""


@dataclass(frozen=True, slots=True)
class StoredContents:
    """The bundle versions in the database. `ask` calls a function with a reader."""

    ask: Callable[[Callable[[Reader], Any]], Any]

    @classmethod
    def over(cls, run: Callable[..., Any]) -> "StoredContents":
        """Those of a process with an engine. `run` runs a function in a transaction, as `transact` does."""
        return cls(lambda work: run(lambda connection: work(EngineReader(connection))))

    def digest(self, version_id: int) -> str:
        return str(self.ask(lambda reader: bundles.digest(reader, version_id)))

    def tree(self, version_id: int) -> Sequence[Entry]:
        found: Sequence[Entry] = self.ask(lambda reader: bundles.tree(reader, version_id))
        return found

    def blobs(self, digests: Collection[str]) -> Iterable[tuple[str, bytes]]:
        found: Iterable[tuple[str, bytes]] = self.ask(lambda reader: list(bundles.blobs(reader, digests)))
        return found


class BundleCache:
    """Makes the folders of bundle versions, and removes the least recently used ones that no process uses.

    Any number of processes may share `folder`. Threads may not share one BundleCache.
    """

    def __init__(self, folder: Path, contents: Contents, *, keep: int) -> None:
        """The `keep` versions that were needed last stay on the machine, and those in use."""
        self._folder = folder
        self._contents = contents
        self._keep = keep
        self._boot = BOOT.read_bytes() if BOOT.exists() else b"unknown"
        #: By version: its digest, and the descriptor of its lock file, which keeps the folder.
        self._used: dict[int, tuple[str, int]] = {}

    @classmethod
    def of(cls, settings: Settings, contents: Contents) -> "BundleCache":
        """The cache of this machine."""
        return cls(settings.bundles_folder, contents, keep=settings.bundles.keep_versions)

    def path(self, version_id: int) -> Path:
        """The folder of a version, which stays until `release`, or until this process and those that it forked have ended.

        PacelineError if a file of the version is missing in the store, or is not the one that was published.
        """
        used = self._used.get(version_id)
        if used is None:
            digest = self._contents.digest(version_id)
            used = self._used[version_id] = digest, self._made(version_id, digest)
        return self._folder / used[0]

    def release(self, version_id: int) -> None:
        """Do not use the folder of a version any more."""
        _, lock = self._used.pop(version_id, ("", None))
        if lock is not None:
            os.close(lock)

    def _made(self, version_id: int, digest: str) -> int:
        """Make the folder unless it exists. Returns the descriptor of its lock file, locked and shared."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / digest
        while True:
            lock = _locked(self._lock_file(digest), fcntl.LOCK_SH)
            if self._is_complete(path, lock):
                os.utime(lock)
                return lock
            os.close(lock)
            with _closing(_locked(self._lock_file(digest), fcntl.LOCK_EX)) as lock:
                if not self._is_complete(path, lock):  # another process may have made it
                    self._make(version_id, digest)
                    os.pwrite(lock, self._boot, 0)
            self._collect(without=digest)

    def _is_complete(self, path: Path, lock: int) -> bool:
        return path.is_dir() and os.pread(lock, len(self._boot), 0) == self._boot

    def _make(self, version_id: int, digest: str) -> None:
        files = self._contents.tree(version_id)
        if bundles.digest_of(files) != digest:
            raise PacelineError(
                f"The stored list of files of bundle version {version_id} is not what was deployed: its digest is not {digest}."
                " Deploy the bundle again, and find out who changed the table bundle_path."
            )
        unfinished = self._folder / f".{digest}"
        _remove(unfinished)  # of a process that was killed
        _remove(self._folder / digest)  # from before the machine was started again
        try:
            unfinished.mkdir()
            missing = self._copy(unfinished, files, self._neighbors(digest))
            self._fetch(version_id, unfinished, missing)
            for folder, _, _ in os.walk(unfinished, topdown=False):
                Path(folder).chmod(0o555)
            unfinished.rename(self._folder / digest)
        except BaseException:
            _remove(unfinished)
            raise

    def _neighbors(self, digest: str) -> list[Path]:
        return [self._folder / name for name in self._names()[:NEIGHBORS] if name != digest]

    def _copy(self, target: Path, files: Sequence[Entry], neighbors: Sequence[Path]) -> dict[str, list[Entry]]:
        """Copy equal files from these versions. Returns the others, by digest.

        They are copies and no links, so that a task that changes a file of its version changes that of no other.
        """
        missing: dict[str, list[Entry]] = {}
        for entry in files:
            if (content := _same(neighbors, entry)) is None:
                missing.setdefault(entry.digest, []).append(entry)
            else:
                _write(target, entry, content)
        return missing

    def _fetch(self, version_id: int, target: Path, missing: Mapping[str, Sequence[Entry]]) -> None:
        left = dict(missing)
        every = list(missing)
        for start in range(0, len(every), BATCH):
            for sha256, content in self._contents.blobs(every[start : start + BATCH]):
                entries = left.pop(sha256, ())
                if hashlib.sha256(content).hexdigest() != sha256:
                    names = ", ".join(entry.path for entry in entries)
                    raise PacelineError(
                        f"The stored content of {names} in bundle version {version_id} is not what was deployed: its SHA-256 is not"
                        f" {sha256}. Deploy the bundle again, and find out who changed the table bundle_blob."
                    )
                for entry in entries:
                    _write(target, entry, content)
        if left:
            first = next(iter(left.values()))[0].path
            raise PacelineError(
                f"The store lacks {len(left)} file(s) of bundle version {version_id}, such as {first}: deploy the bundle again."
            )

    def _names(self) -> list[str]:
        """The digests of the versions on this machine, those that were needed last first."""
        times: dict[str, float] = {}
        for path in self._folder.iterdir():
            if path.suffix != ".lock" and not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    times[path.name] = self._lock_file(path.name).stat().st_mtime
        return sorted(times, key=lambda name: times[name], reverse=True)

    def _collect(self, *, without: str) -> None:
        """Remove the least recently used versions, except for those in use, and what killed processes have left."""
        unfinished = [path.name[1:] for path in self._folder.iterdir() if path.name.startswith(".")]
        for name in (*self._names()[self._keep :], *unfinished):
            if name == without:
                continue
            with contextlib.suppress(BlockingIOError), _closing(_locked(self._lock_file(name), fcntl.LOCK_EX | fcntl.LOCK_NB)):
                # Under another name first: what a killed process leaves must not look complete.
                _remove(self._folder / f".{name}")
                with contextlib.suppress(FileNotFoundError):
                    (self._folder / name).rename(self._folder / f".{name}")
                    log.info("bundle version %s makes room on this machine: it was not needed for the longest time", name[:12])
                _remove(self._folder / f".{name}")
                self._lock_file(name).unlink()

    def _lock_file(self, digest: str) -> Path:
        return self._folder / f"{digest}.lock"


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


def _same(neighbors: Sequence[Path], entry: Entry) -> bytes | None:
    """The content of an equal file in another version. A task may have changed it, so its digest counts."""
    for folder in neighbors:
        with contextlib.suppress(OSError):
            content = (folder / entry.path).read_bytes()
            if hashlib.sha256(content).hexdigest() == entry.digest:
                return content
    return None


def _write(folder: Path, entry: Entry, content: bytes) -> None:
    pure = PurePosixPath(entry.path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise PacelineError(f"A bundle version has the path {entry.path!r}, which is outside its folder: deploy the bundle again.")
    path = folder / pure
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)
    path.chmod(0o555 if entry.is_executable else 0o444)


def _remove(folder: Path) -> None:
    """Remove a folder that may be read-only, or not exist."""
    for below, _, _ in os.walk(folder):
        Path(below).chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
