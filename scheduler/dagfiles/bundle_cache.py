"""The bundle versions on this machine: read-only folders below `<PACELINE_HOME>/bundles`, by digest, which its processes share.

A version of the DAGs folder is in a folder of the same name, with links to what is beside the DAGs folder on this machine, such as
`../include`: only the DAGs folder is versioned, and its files find the rest where they expect it.

Such a cache is bounded, and none of its folders in use is removed. `<name>/` gets this name when it is complete. `<name>.lock` is
locked by the process that makes or removes the folder, and shared by each process that uses it. Its time says when the folder was
last needed, and its text since which start of the machine it is complete: a power failure can empty files that were just written.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from paceline.exceptions import PacelineError
from scheduler.settings import Settings
from scheduler.store.dags import blobs, bundles
from scheduler.store.dags.blobs import Packed
from scheduler.store.dags.bundles import DAGS_FOLDER, BundleFile, Entry, Identity
from scheduler.store.db.rows import EngineReader, Reader

#: Names this start of the machine.
BOOT = Path("/proc/sys/kernel/random/boot_id")
#: Seconds until a process looks again at a folder that another process was about to make.
PAUSE_S = 0.01


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
            try:
                # Without waiting: the process that made it meanwhile shares the lock for as long as it uses the folder.
                lock = _locked(self._lock_file(name), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(PAUSE_S)
                continue
            with _closing(lock):
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
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder that may be read-only, or not exist."""
    for below, _, _ in os.walk(folder):
        Path(below).chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


log = logging.getLogger("paceline.bundles")

#: How many files are read from the store at once.
BATCH = 64
#: Separates the digest of a version of the DAGs folder, in the name of its folder, from the name of the DAGs folder.
NESTED = "+"
#: The most links that a version gets.
MOST_LINKS = 500
#: How many of the versions that were needed last are searched for files of a new version.
NEIGHBORS = 3


class Contents(Protocol):
    """The store of bundle versions."""

    def identity(self, version_id: int) -> Identity:
        """The bundle and the digest of a version. NotFoundError if there is no such version."""

    def tree(self, version_id: int) -> Sequence[Entry]:
        """The files of a version."""

    def blobs(self, digests: Collection[str]) -> Iterable[tuple[str, bytes]]:
        """The contents with these digests."""


@dataclass(frozen=True, slots=True)
class StoredContents:
    """The bundle versions in the database. `ask` calls a function with a reader."""

    ask: Callable[[Callable[[Reader], Any]], Any]
    #: Where the contents are that are not in the database.
    code_url: str | None

    @classmethod
    def over(cls, run: Callable[..., Any], settings: Settings) -> "StoredContents":
        """Those of a process with an engine. `run` runs a function in a transaction, as `transact` does."""
        return cls(lambda work: run(lambda connection: work(EngineReader(connection))), settings.bundles.code_url)

    def identity(self, version_id: int) -> Identity:
        found: Identity = self.ask(lambda reader: bundles.identity(reader, version_id))
        return found

    def tree(self, version_id: int) -> Sequence[Entry]:
        found: Sequence[Entry] = self.ask(lambda reader: bundles.tree(reader, version_id))
        return found

    def blobs(self, digests: Collection[str]) -> Iterable[tuple[str, bytes]]:
        return blobs.unpacked(self.ask(lambda reader: list(blobs.packed(reader, digests))), self.code_url)

    def content(self, version_id: int, path: str) -> bytes | None:
        """The content of one file of a version; None if it has no such file."""
        packed: Packed | None = self.ask(lambda reader: bundles.packed_file(reader, version_id, path))
        return None if packed is None else next(blobs.unpacked([packed], self.code_url), ("", None))[1]

    def files(self, version_id: int) -> dict[str, BundleFile]:
        """The files of a version by path. PacelineError if one is missing, or is not the one that was published."""
        entries = self.tree(version_id)
        contents = dict(self.blobs({entry.digest for entry in entries}))
        for entry in entries:
            content = contents.get(entry.digest)
            if content is None or hashlib.sha256(content).hexdigest() != entry.digest:
                raise PacelineError(f"The stored content of {entry.path} is not what was deployed: deploy the bundle again.")
        return {entry.path: BundleFile(contents[entry.digest], entry.is_executable) for entry in entries}


class BundleCache:
    """Makes the folders of bundle versions, and removes the least recently used ones that no process uses.

    Any number of processes may share `folder`. Threads may not share one BundleCache.
    """

    def __init__(self, folder: Path, contents: Contents, *, keep: int, dags_folder: Path | None = None) -> None:
        """The `keep` versions that were needed last stay on the machine, and those in use."""
        #: The DAGs folder of this machine, if it has one.
        self.dags_folder = dags_folder if dags_folder is not None and dags_folder.is_dir() else None
        self._folders = SharedFolders(folder, keep=keep, removed=_log_removal)
        self._contents = contents
        #: By version: its name in the cache, and the descriptor of its lock file, which keeps the folder.
        self._used: dict[int, tuple[str, int]] = {}

    @classmethod
    def of(cls, settings: Settings, contents: Contents) -> "BundleCache":
        """The cache of this machine."""
        return cls(settings.bundles_folder, contents, keep=settings.bundles.keep_versions, dags_folder=settings.dags_folder)

    def path(self, version_id: int) -> Path:
        """The folder of a version, which stays until `release`, or until this process and those that it forked have ended.

        PacelineError if a file of the version is missing in the store, or is not the one that was published.
        """
        used = self._used.get(version_id)
        if used is None:
            found = self._contents.identity(version_id)
            name = found.digest
            if self.dags_folder is not None and found.bundle == DAGS_FOLDER:
                name += NESTED + self.dags_folder.name
            lock = self._folders.hold(name, lambda folder: self._make(version_id, found.digest, folder / _inner(name)))
            used = self._used[version_id] = name, lock
        return self._files_of(used[0])

    def release(self, version_id: int) -> None:
        """Do not use the folder of a version any more."""
        _, lock = self._used.pop(version_id, ("", None))
        if lock is not None:
            os.close(lock)

    def beside(self, folder: Path) -> tuple[Path, Path] | None:
        """For a version with links beside it: where they are, and the folder to whose files they lead."""
        if self.dags_folder is None or NESTED not in folder.parent.name:
            return None
        return folder.parent, self.dags_folder.parent

    def _files_of(self, name: str) -> Path:
        return self._folders.path(name) / _inner(name)

    def _make(self, version_id: int, digest: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        files = self._contents.tree(version_id)
        if bundles.digest_of(files) != digest:
            raise PacelineError(
                f"The stored list of files of bundle version {version_id} is not what was deployed: its digest is not {digest}."
                " Deploy the bundle again, and find out who changed the table bundle_path."
            )
        neighbors = [self._files_of(name) for name in self._folders.names()[:NEIGHBORS]]
        self._fetch(version_id, folder, self._copy(folder, files, neighbors))
        for below, _, _ in os.walk(folder, topdown=False):
            Path(below).chmod(0o555)
        if (beside := self.beside(folder)) is not None:
            _link(*beside, but=folder.name)

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
                        f" {sha256}. Deploy the bundle again, and find out who changed the table bundle_blob or bundles.code_url."
                    )
                for entry in entries:
                    _write(target, entry, content)
        if left:
            first = next(iter(left.values()))[0].path
            raise PacelineError(
                f"The store lacks {len(left)} file(s) of bundle version {version_id}, such as {first}: deploy the bundle again."
            )


def _inner(name: str) -> str:
    """The folder of the files of a version inside its folder of the cache; the empty string if they are in it themselves."""
    return name.partition(NESTED)[2]


def _link(folder: Path, parent: Path, *, but: str) -> None:
    """Link to what is beside the DAGs folder now. Of a folder with very many entries, none is code of the DAGs."""
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(parent) if name != but]  # noqa: PTH208 - names of any bytes
        for name in names if len(names) <= MOST_LINKS else ():
            (folder / name).symlink_to(parent / name)
        folder.chmod(0o555)


def _log_removal(digest: str) -> None:
    log.info("bundle version %s makes room on this machine: it was not needed for the longest time", digest[:12])


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
