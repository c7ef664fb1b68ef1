"""The files of tables: where they may be, and metadata files, which are written once and never change."""

import contextlib
import functools
import json
import os
import posixpath
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyarrow.fs import AwsDefaultS3RetryStrategy, FileSelector
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.view.metadata import ViewMetadata

from scheduler.catalog.access import S3_RETRIES
from scheduler.catalog.errors import CatalogError, ForbiddenError, UnsupportedError
from scheduler.store.tables.pointers import VIEW

#: Metadata of tables that stays in memory.
KEPT = 128
#: A part of a namespace, or the name of a table: it becomes the name of a folder.
NAME = re.compile(r"[^\W\d.][\w\- ]{0,99}|\d[\w\- ]{0,99}")
#: Properties of a table that say where files go.
PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
VERSION = re.compile(r"(\d+)-[0-9a-f-]+(?:\.view)?\.metadata\.json")
#: pyiceberg writes version 2 at most.
NEWEST_FORMAT = 2
#: What each snapshot counts, and all commits of a try together.
SUMMED = ("added-records", "deleted-records", "added-data-files", "added-files-size")


@dataclass(frozen=True, slots=True)
class Metadata:
    """A metadata file: its place, its text, and the table that it describes."""

    location: str
    text: str
    table: TableMetadata


#: How often a request to S3 is repeated, over 6 s: the pause doubles from 25 ms on.
S3_REPEATS = 8


class S3Retries(AwsDefaultS3RetryStrategy):  # type: ignore[misc]
    """Sends a request to S3 again that met an error of the server or of the connection.

    pyarrow's default may repeat 100 requests in the life of a client: it takes each one from a quota that it never fills again. A
    process that lives for months repeats none after that.
    """

    def __init__(self) -> None:
        super().__init__(max_attempts=S3_REPEATS)


class Warehouse:
    """The folder of all tables of a catalog."""

    def __init__(self, url: str, storage: dict[str, str]) -> None:
        self.url = url
        self.io: FileIO = load_file_io({**S3_RETRIES, **storage}, url)
        #: The metadata at a location. FileNotFoundError if it is gone.
        self.metadata = functools.lru_cache(maxsize=KEPT)(self._metadata)

    @classmethod
    @functools.cache
    def of(cls, url: str, options: str) -> "Warehouse":
        """The warehouse of this process, with the storage options of the settings."""
        return cls(url, dict(pair.split("=", 1) for pair in options.split()))

    def folder(self, namespace: str) -> str:
        """The folder of a namespace."""
        return f"{self.url}/{namespace.replace('.', '/')}"

    def new_location(self, namespace: str, name: str) -> str:
        """A folder for a new table. A name that was dropped and created again gets another one."""
        return f"{self.folder(namespace)}/{name}-{uuid.uuid4().hex[:8]}"

    def check_location(self, location: str, namespace: str, what: str) -> str:
        """A folder that a client has chosen, without a trailing slash. ForbiddenError outside of the folder of the namespace."""
        location = _url(location.rstrip("/"))
        self._check_inside(location, self.folder(namespace), what)
        return location

    def check_file(self, location: str, table: TableMetadata, what: str) -> None:
        """A file that a client names as part of a table. ForbiddenError outside of the folders of the table."""
        folders = [table.location, *(table.properties[key] for key in PATHS if key in table.properties)]
        if not any(_is_inside(_url(location), _url(folder)) for folder in folders):
            raise ForbiddenError(f"The {what} {location} is outside of the folder of its table, {table.location}.")

    def check_properties(self, properties: dict[str, str], namespace: str) -> None:
        """Properties of a table. ForbiddenError for a path outside of the namespace, UnsupportedError for a format."""
        for key in PATHS:
            if key in properties:
                self.check_location(properties[key], namespace, f"folder in {key}")
        check_format(properties.get("format-version"))

    def check_metadata(self, location: str) -> None:
        """A metadata file that is to be registered. ForbiddenError outside of the warehouse."""
        self._check_inside(location, self.url, "metadata file")

    def write(self, table: TableMetadata, previous: str | None, mark: str = "") -> str:
        """Write the metadata of a table to a new file, whose name has the mark of its request, and return its location."""
        known = VERSION.search(previous or "")
        version = int(known[1]) + 1 if known else 0
        folder = table.properties.get("write.metadata.path", f"{table.location}/metadata").rstrip("/")
        name = f"{version:05d}-{mark}{str(uuid.uuid4())[len(mark) :]}.metadata.json"
        return self._written(f"{folder}/{name}", table.model_dump_json(exclude_none=True))

    def write_view(self, view: ViewMetadata, previous: str | None) -> str:
        """Write the metadata of a view to a new file, and return its location."""
        known = VERSION.search(previous or "")
        version = int(known[1]) + 1 if known else 0
        place = f"{view.location}/metadata/{version:05d}-{uuid.uuid4()}{VIEW}"
        return self._written(place, view.model_dump_json(exclude_none=True))

    def write_copy(self, location: str, text: str) -> None:
        """Write a metadata file whose name and text follow from another one. A part of it that is there already is replaced."""
        self._written(location, text, overwrite=True)

    def is_complete(self, location: str) -> bool:
        """Whether a metadata file is there, and whole."""
        try:
            return self.text(location).endswith("}")
        except FileNotFoundError:
            return False

    def _written(self, location: str, text: str, *, overwrite: bool = False) -> str:
        with self.io.new_output(location).create(overwrite=overwrite) as stream:
            stream.write(text.encode())
        return location

    def listed(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """The files below a folder, each with the time of its last change. OSError."""
        if not isinstance(self.io, PyArrowFileIO):
            raise OSError(f"{type(self.io).__name__} cannot list {folder}")
        scheme, netloc, path = PyArrowFileIO.parse_location(folder, self.io.properties)
        selector = FileSelector(path, recursive=True, allow_not_found=True)
        for one in self.io.fs_by_scheme(scheme, netloc).get_file_info(selector):
            if one.is_file and one.mtime is not None:
                yield folder + one.path.removeprefix(path), one.mtime

    def delete_folder(self, folder: str) -> None:
        """Delete a folder of this machine with its folders, as far as they are empty. An object storage has none."""
        if folder.startswith("file://"):
            for place, _, _ in os.walk(folder.removeprefix("file://"), topdown=False):
                with contextlib.suppress(OSError):
                    Path(place).rmdir()

    def delete(self, location: str) -> None:
        """Delete a file; nothing if it is gone."""
        try:
            self.io.delete(location)
        except FileNotFoundError:
            return

    def text(self, location: str) -> str:
        """What is in a file. FileNotFoundError."""
        with self.io.new_input(location).open() as stream:
            content = stream.read()
        return content.decode("utf-8")

    def _metadata(self, location: str) -> Metadata:
        text = self.text(location)
        return Metadata(location, text, TableMetadataUtil.parse_raw(text))

    @staticmethod
    def _check_inside(location: str, folder: str, what: str) -> None:
        if not _is_inside(location, folder):
            raise ForbiddenError(f"The {what} {location} is outside of {folder}, where this namespace has its tables.")


def places(table: TableMetadata) -> list[str]:
    """The folders of a table, as URLs."""
    return [_url(one) for one in (table.location, *(table.properties[key] for key in PATHS if key in table.properties))]


def owns(tables: Iterable[TableMetadata], location: str) -> bool:
    """Whether a file is in a folder of one of these tables. Any other may have another owner, as what `add_files` has added."""
    return any(_is_inside(_url(location), folder) for folder in {place for one in tables for place in places(one)})


def _url(location: str) -> str:
    """A location as a URL; Hadoop writes a path of this machine with one slash."""
    if location.startswith("/"):
        return f"file://{location}"
    return f"file://{location.removeprefix('file:')}" if re.match(r"file:/(?!/)", location) else location


def _is_inside(location: str, folder: str) -> bool:
    """Whether a location lies below a folder, whatever `..`, doubled slashes and escapes it has."""
    if any(mark in location for mark in ("\\", "\0", "?", "#")):
        return False
    scheme, _, path = location.rpartition("://")
    plain = unquote(path)
    if ".." in plain.split("/") or posixpath.normpath(plain) != plain.rstrip("/"):
        return False
    return f"{scheme}://{plain}".startswith(f"{folder}/")


def check_format(version: Any) -> None:
    """UnsupportedError for a version of the format that the catalog cannot write."""
    if version is not None and not (str(version).isdecimal() and 1 <= int(version) <= NEWEST_FORMAT):
        raise UnsupportedError(
            f"Format version {version} of Iceberg is not supported: create the table with format-version {NEWEST_FORMAT}."
        )


def check_name(kind: str, *parts: str) -> None:
    """CatalogError for a name of a namespace or a table that cannot be the name of a folder."""
    for part in parts:
        if NAME.fullmatch(part) is None:
            raise CatalogError(f"{part!r} is no name of a {kind}: use at most 100 letters, digits, -, _ and blanks, and no dot.")


def facts(table: TableMetadata, before: TableMetadata | None) -> dict[str, Any]:
    """What pages say of a version of a table: its snapshot, and what that has changed."""
    snapshot = table.current_snapshot()
    found: dict[str, Any] = {"uuid": str(table.table_uuid), "schema_id": table.current_schema_id}
    if before is not None and before.current_schema_id != table.current_schema_id:
        found["schema_changed"] = True
        found["schema_change"] = schema_change(before.schema(), table.schema())
    if before is None or "schema_changed" in found:
        found["columns"] = columns(table)
    if snapshot is None:
        return found
    found["snapshot_id"] = snapshot.snapshot_id
    if snapshot.summary is not None:
        found["operation"] = snapshot.summary.operation.value
        if (total := snapshot.summary.additional_properties.get("total-records")) is not None:
            found["total_records"] = int(total)
    # A commit can add several snapshots: a replacement is a deletion and an append.
    for one in _came(table, before):
        for key in SUMMED:
            if one.summary is not None and (value := one.summary.additional_properties.get(key)) is not None:
                name = key.replace("-", "_")
                found[name] = found.get(name, 0) + int(value)
    return found


def _came(table: TableMetadata, before: TableMetadata | None) -> Iterator[Snapshot]:
    """The snapshots that led from the current one of `before` to that of `table`. Rows of other branches are not seen yet."""
    known = set() if before is None else {one.snapshot_id for one in _line(before)}
    for one in _line(table):
        if one.snapshot_id in known:
            return
        yield one


def _line(table: TableMetadata) -> Iterator[Snapshot]:
    """The current snapshot of a table, and those before it, newest first."""
    by_id = {one.snapshot_id: one for one in table.snapshots}
    one = table.current_snapshot()
    while one is not None:
        yield one
        one = None if one.parent_snapshot_id is None else by_id.get(one.parent_snapshot_id)


def replaced(table: TableMetadata, before: TableMetadata) -> dict[str, Any]:
    """The facts of a table that a try has created in place of one that it has dropped: all rows of that are removed."""
    found = facts(table, None)
    if changes := schema_change_by_name(before.schema(), table.schema()):
        found |= {"schema_changed": True, "schema_change": changes}
    if removed := facts(before, None).get("total_records"):
        found["deleted_records"] = removed + found.get("deleted_records", 0)
    return found


def columns(table: TableMetadata) -> dict[str, str]:
    """The columns of a table with their types."""
    return {field.name: str(field.field_type) for field in table.schema().fields}


def schema_change(before: Schema, after: Schema) -> list[str]:
    """The columns that were added, removed, renamed or changed, for people."""
    old, new = ({one.field_id: one for one in each.fields} for each in (before, after))
    return [
        *(f"added {new[key].name} {new[key].field_type}" for key in new.keys() - old.keys()),
        *(f"removed {old[key].name}" for key in old.keys() - new.keys()),
        *(f"renamed {old[key].name} to {new[key].name}" for key in old.keys() & new.keys() if old[key].name != new[key].name),
        *(
            f"changed {new[key].name} from {old[key].field_type} to {new[key].field_type}"
            for key in old.keys() & new.keys()
            if old[key].field_type != new[key].field_type
        ),
    ]


def schema_change_by_name(before: Schema, after: Schema) -> list[str]:
    """As `schema_change`, between a table and another one that has replaced it: their numbers of columns are not related."""
    old, new = ({one.name: str(one.field_type) for one in each.fields} for each in (before, after))
    return [
        *(f"added {name} {kind}" for name, kind in new.items() if name not in old),
        *(f"removed {name}" for name in old if name not in new),
        *(f"changed {name} from {old[name]} to {kind}" for name, kind in new.items() if old.get(name, kind) != kind),
    ]


def body(metadata: Metadata) -> bytes:
    """The response to a client that loads a table."""
    location = json.dumps(metadata.location)
    return f'{{"metadata-location": {location}, "metadata": {metadata.text}, "config": {{}}}}'.encode()


def files_of(warehouse: Warehouse, snapshots: Iterable[Snapshot]) -> dict[str, None]:
    """All files of snapshots: data files, then manifests, then manifest lists. What an earlier call has deleted is left out."""
    data: dict[str, None] = {}
    manifests: dict[str, None] = {}
    lists: dict[str, None] = {}
    for snapshot in snapshots:
        try:
            listed = snapshot.manifests(warehouse.io)
        except FileNotFoundError:
            continue
        lists[snapshot.manifest_list] = None
        for manifest in listed:
            if manifest.manifest_path not in manifests:
                try:
                    entries = manifest.fetch_manifest_entry(warehouse.io, discard_deleted=True)
                except FileNotFoundError:
                    continue
                manifests[manifest.manifest_path] = None
                data.update(dict.fromkeys(entry.data_file.file_path for entry in entries))
    return {**data, **manifests, **lists}


def all_files(warehouse: Warehouse, tables: Iterable[TableMetadata]) -> set[str]:
    """All files that versions of tables name, with the metadata files of their histories."""
    snapshots: dict[tuple[str, int], Snapshot] = {}
    found: set[str] = set()
    for table in tables:
        snapshots.update({(str(table.table_uuid), one.snapshot_id): one for one in table.snapshots})
        found.update(entry.metadata_file for entry in table.metadata_log)
        found.update(one.statistics_path for one in (*table.statistics, *table.partition_statistics))
        found.update(one.manifest_list for one in table.snapshots)
    return found.union(files_of(warehouse, snapshots.values()))
