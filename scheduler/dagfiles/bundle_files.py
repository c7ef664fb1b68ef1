"""The files of a bundle: which files of a folder or an archive belong to it, and which are refused.

The same rules hold for a folder that `paceline deploy` packs, and for the archive that a web process receives. An archive is read
as a stream: nothing of it is written to a path, and no size that it states is trusted.
"""

import gzip
import io
import os
import re
import stat
import tarfile
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from paceline.exceptions import UsageError
from scheduler.settings import log_paths
from scheduler.settings.sections import Bundles
from scheduler.store.dags.bundles import BundleFile

#: In bytes. File systems allow 255 for a name; the temporary name of a copy is longer than the name.
LONGEST_NAME, LONGEST_PATH = 200, 1000
#: A folder with this file is a virtual environment.
ENVIRONMENT = "pyvenv.cfg"
#: Hidden files are left out, except the rules of DAG files.
IGNORE_FILE = ".airflowignore"
LEFT_OUT = frozenset({"__pycache__", "node_modules"})
#: What tar adds to each file: its header, an extended header, and the padding of both.
MOST_ADDED = 8 << 10
#: Bytes of an extended header, which has the name of a file. tarfile would read a larger one as a whole, and search it slowly.
MOST_EXTENDED = 2 << 10
EXTENDED = frozenset({
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
})  # fmt: skip
#: What tarfile raises for bytes that are no archive.
UNREADABLE = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, LookupError, OverflowError, RecursionError)
#: A line break or another control character, also one that reverses the text after it, or a byte that is not UTF-8 (a surrogate).
BAD_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
DEVICES = {tarfile.FIFOTYPE: "a FIFO", tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device"}
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
PART = 1 << 20


#: A file that was not read: its path in the bundle, its real path and its status.
Listed = tuple[str, str, os.stat_result]


class BundleRefusedError(UsageError):
    """A bundle cannot take a file or an archive."""


class TooLargeError(BundleRefusedError):
    """A bundle has too many files or bytes."""


def most_archive_bytes(limits: Bundles) -> int:
    """The bytes of an archive, packed or not, above which it cannot fit the limits of a bundle."""
    return limits.max_bytes + limits.max_files * MOST_ADDED


def belongs(name: str) -> bool:
    """Whether a file or folder of this name belongs to a bundle. Hidden ones, caches and node_modules do not."""
    return name == IGNORE_FILE or not (name.startswith(".") or name in LEFT_OUT or name.endswith((".pyc", ".pyo")))


def read_folder(folder: Path, limits: Bundles) -> dict[str, BundleFile]:
    """The files of a folder by path, which has slashes. Links inside the folder are followed. BundleRefusedError."""
    if not folder.is_dir():
        raise BundleRefusedError(f"{_shown(str(folder))} is not a folder: name the folder with the DAG files.")
    root = os.path.realpath(folder)
    checks = _Checks(limits)
    return {path: _file(path, real, status.st_mode, checks) for path, real, status in _below(root, root, "", checks, (root,))}


def list_folder(folder: Path, limits: Bundles) -> Iterator[Listed]:
    """The files of a folder as `read_folder` finds them, without reading them: path, real path and status. BundleRefusedError."""
    checks = _Checks(limits)
    root = os.path.realpath(folder)
    for path, real, status in _below(root, root, "", checks, (root,)):
        _check_regular(path, status.st_mode)
        checks.add(path)
        checks.weigh(path, status.st_size)
        yield path, real, status


def _below(root: str, folder: str, prefix: str, checks: "_Checks", around: tuple[str, ...]) -> Iterator[Listed]:
    """`around` are the real paths of the folder and the folders around it."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names of any bytes
    except OSError as error:
        raise BundleRefusedError(f"The folder {_shown(prefix)} cannot be read: {error.strerror}.") from None
    for name in filter(belongs, names):
        path, real = prefix + name, f"{folder}/{name}"
        checks.name(path)
        try:
            status = os.lstat(real)
            if stat.S_ISLNK(status.st_mode):
                real = os.path.realpath(real)
                if not f"{real}/".startswith(f"{root}/"):
                    raise BundleRefusedError(f"{_shown(path)} is a link that leads out of the folder: put a copy in its place.")
                status = os.stat(real)  # noqa: PTH116 - names of any bytes
        except OSError as error:
            raise BundleRefusedError(f"{_shown(path)} cannot be read: {error.strerror}.") from None
        if not stat.S_ISDIR(status.st_mode):
            yield path, real, status
        elif real in around:
            raise BundleRefusedError(f"{_shown(path)} is a link to a folder around it: remove it.")
        elif not os.path.lexists(f"{real}/{ENVIRONMENT}"):
            yield from _below(root, real, f"{path}/", checks, (*around, real))


def _file(path: str, real: str, mode: int, checks: "_Checks") -> BundleFile:
    _check_regular(path, mode)
    checks.add(path)
    try:
        with os.fdopen(log_paths.regular_descriptor(Path(real)), "rb") as file:
            content = file.read(checks.limits.max_file_bytes + 1)
    except OSError as error:
        raise BundleRefusedError(f"{_shown(path)} cannot be read: {error.strerror or error}.") from None
    checks.weigh(path, len(content))
    return BundleFile(content, bool(mode & stat.S_IXUSR))


def _check_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise BundleRefusedError(f"{_shown(path)} is {KINDS.get(stat.S_IFMT(mode), 'no regular file')}: remove it.")


def write_archive(files: Mapping[str, BundleFile], target: IO[bytes]) -> None:
    """Write files, by path, as a tar.gz archive."""
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as archive:
        for path, file in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(file.content), 0o755 if file.is_executable else 0o644
            archive.addfile(entry, io.BytesIO(file.content))


def read_archive(packed: IO[bytes], limits: Bundles) -> dict[str, BundleFile]:
    """The files of a tar.gz archive, by path. BundleRefusedError."""
    checks, unpacked, files = _Checks(limits), _Unpacked(packed, limits), dict[str, BundleFile]()
    try:
        reader: Any = unpacked
        with tarfile.open(fileobj=reader, mode="r|", tarinfo=_Entry, encoding="utf-8", errors="surrogateescape") as archive:
            for entry in archive:
                if (path := _path_of(entry, checks)) is not None:
                    content = archive.extractfile(entry)
                    assert content is not None
                    files[path] = BundleFile(content.read(), bool(entry.mode & stat.S_IXUSR))
        unpacked.check_end(archive.offset)
    except BundleRefusedError:
        raise
    except UNREADABLE as error:
        text = str(error).strip().rstrip(".") or type(error).__name__
        raise BundleRefusedError(f"The archive is damaged, or no tar.gz archive: {text[:200]}.") from None
    return files


def _path_of(entry: tarfile.TarInfo, checks: "_Checks") -> str | None:
    """The path of a file of an archive; None for a folder, and for what does not belong to a bundle."""
    checks.name(entry.name)
    names = [name for name in entry.name.split("/") if name not in {"", "."}]
    path = "/".join(names)
    if entry.isdir() or not all(map(belongs, names)):
        return None
    if not entry.isreg() or entry.issparse() or not names:
        kind = "a link" if entry.issym() or entry.islnk() else DEVICES.get(entry.type, "no regular file")
        raise BundleRefusedError(f"{_shown(entry.name)} is {kind}: the archive of a bundle holds regular files and folders only.")
    checks.add(path)
    checks.weigh(path, entry.size)
    return path


class _Checks:
    """The names and sizes of the files of one bundle."""

    def __init__(self, limits: Bundles) -> None:
        self.limits = limits
        self._count = self._bytes = 0
        #: Each file and folder by its name on a file system that ignores case, with its path and whether it is a file.
        self._places: dict[str, tuple[str, bool]] = {}

    def name(self, path: str) -> None:
        """Count a file or a folder, and check its path."""
        self._count += 1
        if self._count > self.limits.max_files:
            most = f"bundles.max_files allows {self.limits.max_files:,}"
            raise TooLargeError(f"The bundle has more files and folders than {most}: leave out what no task needs.")
        if BAD_CHARACTER.search(path):
            why = "has a line break or another control character, or is not UTF-8"
            raise BundleRefusedError(f"The name {_shown(path)} {why}: rename it.")
        names = path.split("/")
        if len(path.encode()) > LONGEST_PATH or any(len(name.encode()) > LONGEST_NAME for name in names):
            most = f"a name may have {LONGEST_NAME} bytes, and a path {LONGEST_PATH:,}"
            raise BundleRefusedError(f"The name {_shown(path)} is too long: {most}.")
        if path.startswith("/") or ".." in names:
            raise BundleRefusedError(f"The name {_shown(path)} leads out of the bundle: use paths inside the folder.")

    def add(self, path: str) -> None:
        """Check that the path of a file is no other's, on a file system that ignores case either."""
        names = path.split("/")
        for depth in range(1, len(names) + 1):
            place, is_file = "/".join(names[:depth]), depth == len(names)
            key = unicodedata.normalize("NFC", place).casefold()
            other, other_is_file = self._places.get(key, (None, False))
            if other is None:
                self._places[key] = (place, is_file)
            elif other != place:
                raise BundleRefusedError(f"{_shown(other)} and {_shown(place)} differ only in case or accents: rename one.")
            elif is_file or other_is_file:
                raise BundleRefusedError(f"The bundle has {_shown(place)} twice: remove one.")

    def weigh(self, path: str, size: int) -> None:
        """Check the size of a file, and of all files."""
        if not 0 <= size <= self.limits.max_file_bytes:
            most = f"bundles.max_file_bytes allows {self.limits.max_file_bytes:,}"
            raise TooLargeError(f"{_shown(path)} has more bytes than {most}: put large data on object storage.")
        self._bytes += size
        if self._bytes > self.limits.max_bytes:
            most = f"bundles.max_bytes allows {self.limits.max_bytes:,}"
            raise TooLargeError(f"The files of the bundle have more bytes than {most}: put large data on object storage.")


class _Entry(tarfile.TarInfo):
    """An entry of an archive whose extended header has a limit."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.type in EXTENDED and not 0 <= self.size <= MOST_EXTENDED:
            raise BundleRefusedError(
                f"An entry of the archive has a header of more than {MOST_EXTENDED:,} bytes: pack it without extended attributes."
            )
        return super()._proc_member(archive)  # type: ignore[misc]


class _Unpacked:
    """The bytes of an archive, up to the number that any bundle needs."""

    def __init__(self, packed: IO[bytes], limits: Bundles) -> None:
        self._file = gzip.GzipFile(fileobj=packed, mode="rb")
        self._most = most_archive_bytes(limits)
        self._read = 0
        #: The number of bytes up to the last one that is not zero.
        self._used = 0

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(min(size, PART) if size >= 0 else PART)
        used = part.rstrip(b"\0")
        if used:
            self._used = self._read + len(used)
        self._read += len(part)
        if self._read > self._most:
            raise TooLargeError(f"The archive holds more than {self._most:,} bytes, which no bundle may have.")
        return part

    def check_end(self, end: int) -> None:
        """Read the rest, and raise BundleRefusedError if the entries ended before the archive."""
        while self.read():
            pass
        if self._used > end:
            raise BundleRefusedError(f"The archive is damaged: it cannot be read beyond byte {end:,}.")


def _shown(path: str) -> str:
    return repr(path if len(path) <= 80 else f"{path[:77]}...")
