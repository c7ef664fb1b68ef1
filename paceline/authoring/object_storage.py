"""Paths of objects in S3, GCS, HDFS and every other system that fsspec supports, with the logins of connections.

universal-pathlib takes a login when a path is created, and compares and shows paths without their connection. So nearly all methods
that return a path would have to be replaced here too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from paceline.authoring.connection import Connection

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: The JSON key that marks a path in an XCom.
MARK = "__object_storage_path__"
#: The arguments of the file system that takes them from the login and the password of a connection, by protocol.
_LOGINS = {"s3": ("key", "secret"), "s3a": ("key", "secret"), "abfs": ("account_name", "account_key")}


def storage_options(protocol: str, connection: Connection) -> dict[str, Any]:
    """The arguments of a file system of fsspec that a connection has: its login, its password and the keys of its extra."""
    names = _LOGINS.get(protocol, ("username", "password"))
    login = {name: value for name, value in zip(names, (connection.login, connection.password), strict=True) if value}
    return {**login, **connection.extra_dejson}


class ObjectStoragePath:
    """A path such as `s3://connection_id@bucket/key`, with the methods of pathlib.Path. `parts` are joined to it with slashes.

    The connection is read at first use in a running task: its login and password, and the keys of its extra, become
    arguments of the fsspec file system. `conn_id` names it in place of the address. Without a connection, the file system
    finds the login itself, as in the environment of the worker. `storage_options` are further arguments of the file system.

    A path can be an XCom, in clear with its `storage_options`, which must then be JSON; logins belong into the connection.
    """

    def __init__(self, path: str | ObjectStoragePath, *parts: str, conn_id: str | None = None, **storage_options: Any) -> None:
        address = urlsplit(str(path))
        user, _, host = address.netloc.rpartition("@")
        if isinstance(path, ObjectStoragePath):
            conn_id, storage_options = conn_id or path.conn_id, {**path.storage_options, **storage_options}
        self.conn_id: str | None = conn_id or user or None
        self.protocol = address.scheme or "file"
        self.storage_options: dict[str, Any] = storage_options
        #: The path in the file system: bucket/key, or an absolute path of the machine.
        self.path = posixpath.join(f"{host}{address.path}" if host else address.path, *parts)

    @property
    def fs(self) -> AbstractFileSystem:
        """The file system of fsspec."""
        import fsspec

        return fsspec.filesystem(self.protocol, **self._options())

    def _options(self) -> dict[str, Any]:
        if self.conn_id is None:
            return dict(self.storage_options)
        return {**storage_options(self.protocol, Connection.get(self.conn_id)), **self.storage_options}

    def joinpath(self, *parts: str) -> ObjectStoragePath:
        """This path with further parts."""
        return self._at(posixpath.join(self.path, *(str(part) for part in parts)))

    __truediv__ = joinpath

    @property
    def parent(self) -> ObjectStoragePath:
        """The folder of this path."""
        return self._at(posixpath.dirname(self.path.rstrip("/")))

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts between slashes, from the bucket on."""
        return tuple(part for part in self.path.split("/") if part)

    @property
    def name(self) -> str:
        """The last part."""
        return posixpath.basename(self.path.rstrip("/"))

    @property
    def suffix(self) -> str:
        """The ending of the name with its dot, such as ".csv"; empty if it has none."""
        return posixpath.splitext(self.name)[1]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return posixpath.splitext(self.name)[0]

    @property
    def suffixes(self) -> list[str]:
        """All endings of the name: [".tar", ".gz"]."""
        return PurePosixPath(self.name).suffixes

    @property
    def parents(self) -> tuple[ObjectStoragePath, ...]:
        """The folders that contain this path, the innermost first."""
        return tuple(self._at(str(folder)) for folder in PurePosixPath(self.path).parents if str(folder) != ".")

    def with_name(self, name: str) -> ObjectStoragePath:
        """This path with another last part."""
        return self._at(str(PurePosixPath(self.path).with_name(name)))

    def with_stem(self, stem: str) -> ObjectStoragePath:
        """This path with another name before its suffix."""
        return self.with_name(stem + self.suffix)

    def with_suffix(self, suffix: str) -> ObjectStoragePath:
        """This path with another suffix, such as ".parquet"; "" removes it."""
        return self._at(str(PurePosixPath(self.path).with_suffix(suffix)))

    def is_relative_to(self, other: str | ObjectStoragePath) -> bool:
        """Whether `other` is this path or a folder that contains it, in the same file system."""
        folder = ObjectStoragePath(other)
        return self.protocol == folder.protocol and PurePosixPath(self.path).is_relative_to(folder.path)

    def relative_to(self, other: str | ObjectStoragePath) -> PurePosixPath:
        """The parts below `other`; ValueError if this path is not below it."""
        if not self.is_relative_to(other):
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(self.path).relative_to(ObjectStoragePath(other).path)

    def match(self, pattern: str) -> bool:
        """Whether the last parts of the path match a pattern such as "*.csv"."""
        return PurePosixPath(self.path).match(pattern)

    def as_posix(self) -> str:
        """The path as text, as `str()` gives it."""
        return str(self)

    def absolute(self) -> ObjectStoragePath:
        """This path, which is absolute."""
        return self

    resolve = absolute

    @property
    def bucket(self) -> str:
        """The first part: the bucket or the container."""
        return self.path.lstrip("/").partition("/")[0]

    container = bucket

    @property
    def key(self) -> str:
        """The part after the bucket."""
        return self.path.lstrip("/").partition("/")[2]

    def open(self, mode: str = "r", **options: Any) -> Any:
        """The open file."""
        return self.fs.open(self.path, mode, **options)

    def read_text(self, encoding: str = "utf-8") -> str:
        """The object as text."""
        return self.read_bytes().decode(encoding)

    def write_text(self, text: str, encoding: str = "utf-8") -> int:
        """Replace the object by a text. Returns the number of bytes."""
        return self.write_bytes(text.encode(encoding))

    def read_bytes(self) -> bytes:
        """The object as bytes."""
        return cast(bytes, self.fs.cat_file(self.path))

    def write_bytes(self, data: bytes) -> int:
        """Replace the object by bytes. Returns their number."""
        self.fs.pipe_file(self.path, data)
        return len(data)

    def exists(self) -> bool:
        """Whether there is an object or a folder at this path."""
        return bool(self.fs.exists(self.path))

    def is_file(self) -> bool:
        """Whether there is an object at this path."""
        return bool(self.fs.isfile(self.path))

    def is_dir(self) -> bool:
        """Whether there are objects below this path."""
        return bool(self.fs.isdir(self.path))

    def stat(self) -> dict[str, Any]:
        """Its size, type and times, as the file system has them."""
        return dict(self.fs.info(self.path))

    def size(self) -> int:
        """Bytes."""
        return int(self.fs.size(self.path))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Create the folder. FileExistsError unless `exist_ok`; an object store has none, and creates nothing."""
        if exist_ok and self.is_dir():
            return
        self.fs.mkdir(self.path, create_parents=parents)

    def iterdir(self) -> Iterator[ObjectStoragePath]:
        """The paths in this folder."""
        return (self._at(path) for path in self.fs.ls(self.path, detail=False))

    def glob(self, pattern: str) -> Iterator[ObjectStoragePath]:
        """The paths below this folder that match a pattern."""
        return (self._at(path) for path in self.fs.glob(posixpath.join(self.path, pattern)))

    def rglob(self, pattern: str) -> Iterator[ObjectStoragePath]:
        """The paths at any depth below this folder that match a pattern."""
        return self.glob(posixpath.join("**", pattern))

    def walk(self) -> Iterator[tuple[ObjectStoragePath, list[str], list[str]]]:
        """Each folder from this one down, with the names of its folders and of its files."""
        return ((self._at(folder), list(folders), list(files)) for folder, folders, files in self.fs.walk(self.path))

    def touch(self, exist_ok: bool = True) -> None:
        """Create an empty object. If there is one, only its time may change; FileExistsError unless `exist_ok`."""
        if self.exists() and not exist_ok:
            raise FileExistsError(str(self))
        self.fs.touch(self.path, truncate=not self.exists())

    def checksum(self) -> int:
        """A number that changes with the object, as the file system computes it."""
        return int(self.fs.checksum(self.path))

    def samefile(self, other: str | ObjectStoragePath) -> bool:
        """Whether both are the same object, by path or else by checksum."""
        path = ObjectStoragePath(other)
        if self.protocol != path.protocol:
            return False
        return self.path == path.path or (self.exists() and path.exists() and self.checksum() == path.checksum())

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object. FileNotFoundError unless `missing_ok`."""
        if not missing_ok or self.exists():
            self.fs.rm_file(self.path)

    def rmdir(self, recursive: bool = True) -> None:
        """Delete the folder, by default with all that it contains."""
        self.fs.rm(self.path, recursive=recursive)

    def copy(self, target: str | ObjectStoragePath) -> None:
        """Copy the object to another path, also in another file system."""
        to = ObjectStoragePath(target)
        with self.open("rb") as source, to.open("wb") as copied:
            while chunk := source.read(1 << 20):
                copied.write(chunk)

    def move(self, target: str | ObjectStoragePath) -> None:
        """Copy the object to another path, and delete it here."""
        self.copy(target)
        self.unlink()

    def rename(self, target: str | ObjectStoragePath) -> ObjectStoragePath:
        """As `move`; returns the new path. An object at `target` is replaced."""
        self.move(target)
        return ObjectStoragePath(target)

    replace = rename

    def copy_into(self, folder: str | ObjectStoragePath) -> ObjectStoragePath:
        """Copy the object into a folder, under its name; returns the new path."""
        target = ObjectStoragePath(folder) / self.name
        self.copy(target)
        return target

    def move_into(self, folder: str | ObjectStoragePath) -> ObjectStoragePath:
        """Move the object into a folder, under its name; returns the new path."""
        return self.rename(ObjectStoragePath(folder) / self.name)

    def to_json(self) -> dict[str, Any]:
        """The JSON of this path in an XCom."""
        return {MARK: self.as_uri(), "conn_id": self.conn_id, "storage_options": self.storage_options}

    def as_uri(self) -> str:
        """The address without the connection."""
        return f"{self.protocol}://{self.path}"

    def __fspath__(self) -> str:
        if self.protocol != "file":
            raise TypeError(f"{self} is no file of this machine; use open().")
        return self.path

    def __str__(self) -> str:
        return f"{self.protocol}://{self.conn_id}@{self.path}" if self.conn_id else self.as_uri()

    def __repr__(self) -> str:
        return f"ObjectStoragePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStoragePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def _at(self, path: str) -> ObjectStoragePath:
        other = ObjectStoragePath(self.as_uri(), conn_id=self.conn_id, **self.storage_options)
        other.path = path
        return other


def revived(value: Mapping[str, Any]) -> Any:
    """The path that `to_json` described, or the object itself if user code used our key for something else."""
    match value:
        case {"__object_storage_path__": str(uri), "conn_id": str() | None as conn_id, "storage_options": dict(options)}:
            return ObjectStoragePath(uri, conn_id=conn_id, **options)
    return value
