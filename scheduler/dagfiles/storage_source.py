"""Reads a bundle from an archive or a folder at a URL that fsspec supports: object storage, HDFS, HTTP, a mounted folder."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.authoring.connection import Connection
from paceline.authoring.object_storage import storage_options
from paceline.exceptions import PacelineError
from scheduler.dagfiles.bundle_files import belongs, most_archive_bytes, read_archive, read_folder
from scheduler.settings.bundle_sources import BundleSource
from scheduler.settings.sections import Bundles
from scheduler.store.dags.bundles import BundleFile

#: What identifies the content of an object, by file system: the first one that it has.
STAMPS = (
    "ETag",
    "etag",
    "md5Hash",
    "md5",
    "content_md5",
    "checksum",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)


class StorageSource:
    """One reading of an archive or a folder. PacelineError says in one sentence what failed."""

    def __init__(self, source: BundleSource, connection: Connection | None, limits: Bundles) -> None:
        import fsspec

        self._source = source
        self._limits = limits
        options = {} if connection is None else storage_options(fsspec.utils.get_protocol(source.url), connection)
        try:
            self._files, self._path = fsspec.url_to_fs(source.url, **options)
            # A listing that this process has kept would hide changes.
            self._files.invalidate_cache()
            self._listing = self._list()
        except PacelineError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def newest(self) -> str:
        """A text that changes when the archive or a file of the folder changes."""
        stamps = [(name, info.get("size"), _stamp(info)) for name, info in sorted(self._listing.items())]
        return hashlib.sha256(json.dumps(stamps, default=str).encode()).hexdigest()

    def read(self, folder: Path) -> dict[str, BundleFile]:
        """The files of the bundle. `folder` is an empty folder for copies."""
        try:
            if self._source.is_archive:
                with self._files.open(self._path, "rb") as packed:
                    return read_archive(packed, self._limits)
            for name in self._listing:
                copy = folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(f"{self._path.rstrip('/')}/{name}", str(copy))
            return read_folder(folder, self._limits)
        except PacelineError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _list(self) -> dict[str, Mapping[str, Any]]:
        """The files by path relative to the folder, or the archive."""
        if self._source.is_archive:
            info = self._files.info(self._path)
            if (info.get("size") or 0) > (most := most_archive_bytes(self._limits)):
                raise PacelineError(f"{self._source.title} has more than {most:,} bytes, which no bundle may have.")
            return {"": info}
        start = f"{self._path.rstrip('/')}/"
        found = {name: info for name, info in self._files.find(self._path, detail=True).items() if name.startswith(start)}
        files = {name.removeprefix(start): info for name, info in found.items()}
        files = {name: info for name, info in files.items() if name and all(map(belongs, name.split("/")))}
        if not files:
            raise PacelineError(f"{self._source.title} has no files.")
        if len(files) > self._limits.max_files:
            raise PacelineError(f"{self._source.title} has more files than bundles.max_files allows: {self._limits.max_files:,}.")
        if sum(info.get("size") or 0 for info in files.values()) > self._limits.max_bytes:
            raise PacelineError(f"{self._source.title} has more bytes than bundles.max_bytes allows: {self._limits.max_bytes:,}.")
        if outside := next((name for name in files if not {"", ".", ".."}.isdisjoint(name.split("/"))), None):
            raise PacelineError(f"{self._source.title} has an object whose name is no path of a file: {outside[:100]!r}.")
        return files

    def _failure(self, error: Exception) -> PacelineError:
        if isinstance(error, FileNotFoundError):
            return PacelineError(f"There is nothing at {self._source.title}.")
        text = (str(error).strip().splitlines() or [""])[0][:300].rstrip(".")
        return PacelineError(f"{self._source.title} cannot be read: {type(error).__name__}{': ' if text else ''}{text}.")


def _stamp(info: Mapping[str, Any]) -> object:
    return next((value for name in STAMPS if (value := info.get(name)) is not None), None)
