"""Paths of objects in S3, GCS, HDFS and every other system that fsspec supports, with the logins of connections."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from scheduler.authoring.connection import Connection

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: The JSON key that marks a path in an XCom.
MARK = "__object_storage_path__"
#: The arguments of the file system that takes them from the login and the password of a connection, by protocol.
_LOGINS = {"s3": ("key", "secret"), "s3a": ("key", "secret"), "abfs": ("account_name", "account_key")}


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
        connection = Connection.get(self.conn_id)
        names = _LOGINS.get(self.protocol, ("username", "password"))
        login = {name: value for name, value in zip(names, (connection.login, connection.password), strict=True) if value}
        return {**login, **connection.extra_dejson, **self.storage_options}

    def __truediv__(self, part: str) -> ObjectStoragePath:
        return self.joinpath(part)

    def joinpath(self, *parts: str) -> ObjectStoragePath:
        """This path with further parts."""
        return self._at(posixpath.join(self.path, *(str(part) for part in parts)))

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
        return (self._at(found) for found in self.fs.ls(self.path, detail=False))

    def glob(self, pattern: str) -> Iterator[ObjectStoragePath]:
        """The paths below this folder that match a pattern."""
        return (self._at(found) for found in self.fs.glob(posixpath.join(self.path, pattern)))

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
        made = ObjectStoragePath(self.as_uri(), conn_id=self.conn_id, **self.storage_options)
        made.path = path
        return made


def revived(value: Mapping[str, Any]) -> Any:
    """The path that `to_json` described, or the object itself if user code used our key for something else."""
    match value:
        case {"__object_storage_path__": str(uri), "conn_id": str() | None as conn_id, "storage_options": dict(options)}:
            return ObjectStoragePath(uri, conn_id=conn_id, **options)
    return value
