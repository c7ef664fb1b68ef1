"""Moves what a try has written onto newer tables, without the engine that wrote it.

If no snapshot came between, such as after the expiry of old ones, the updates of the try are applied to the newer metadata. Else
manifests are listed again, in one of two cases. Appended files come upon those of the newer snapshot, if others have only compacted
the table, or the author has allowed it. A compaction, which changes no rows, keeps the files that others have appended.
"""

import copy
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.manifest import ManifestContent, ManifestFile, write_manifest_list
from pyiceberg.table import update as updates
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, ancestors_of, update_snapshot_summaries

from scheduler.catalog import commits, files
from scheduler.catalog.errors import CatalogError
from scheduler.catalog.files import Metadata, Warehouse

#: The property of a table that lets appends be moved onto newer rows. An append that was computed from the rows of its own table
#: would not have come out like this, so the default is false.
ALLOWED = "paceline.rebase-appends"
#: Of a file in a manifest that has not been listed yet.
UNASSIGNED = -1


class NotRebasedError(Exception):
    """Why the updates cannot be applied to the newer table, in words."""


@dataclass(frozen=True, slots=True)
class Rebased:
    """The metadata file with the updates of the try on the newer table."""

    location: str
    facts: dict[str, Any]


def rebase(warehouse: Warehouse, base: str, current: str, changes: Sequence[Any] | None) -> Rebased:
    """Apply the updates of a try, which were made on the metadata `base`, to `current`. NotRebasedError."""
    if not changes:
        raise NotRebasedError("the try has replaced the table")
    before, now = _read(warehouse, base), _read(warehouse, current)
    if before.table.table_uuid != now.table.table_uuid:
        raise NotRebasedError("it was replaced")
    if not isinstance(now.table, TableMetadataV2):
        raise NotRebasedError("it has format version 1")
    wanted = commits.parsed({"updates": list(changes)}, "n", "t").updates
    if _rows(before.table) == _rows(now.table) and _is_next(now.table, wanted):
        moved = list(wanted)
    else:
        if not commits.replaces(wanted):
            _check_appends(before.table, now.table, wanted)
        if _shape(before.table) != _shape(now.table):
            raise NotRebasedError("its schema or partitioning has changed")
        moved = _listed_again(warehouse, now.table, wanted)
    try:
        table = updates.update_table_metadata(now.table, tuple(moved), metadata_location=now.location)
    except (ValueError, ValidationError) as error:
        raise NotRebasedError(f"the updates do not fit it any more ({error})") from None
    return Rebased(warehouse.write(table, now.location), files.facts(table, now.table))


def may_be_given_up(changes: Sequence[Any] | None) -> bool:
    """Whether the updates of a try only compact a table: without them, it has the same rows."""
    return bool(changes) and commits.replaces(commits.parsed({"updates": list(changes or ())}, "n", "t").updates)


def _read(warehouse: Warehouse, location: str) -> Metadata:
    try:
        return warehouse.metadata(location)
    except (OSError, CatalogError):
        raise NotRebasedError(f"its metadata file {location} is gone") from None


def _shape(table: TableMetadata) -> tuple[Any, ...]:
    return table.current_schema_id, table.default_spec_id, table.format_version


def _rows(table: TableMetadata) -> tuple[Any, ...]:
    """What decides whether updates can be applied as they are."""
    refs = {name: ref.snapshot_id for name, ref in table.refs.items()}
    return _shape(table), refs, table.location


def _is_next(table: TableMetadataV2, wanted: Sequence[Any]) -> bool:
    """Whether no snapshot came after the one that the updates were written on. Else they were moved before, onto that one."""
    added = (one.snapshot for one in wanted if isinstance(one, updates.AddSnapshotUpdate))
    return all((one.sequence_number or 0) > table.last_sequence_number for one in added)


def _check_appends(before: TableMetadata, now: TableMetadata, wanted: Sequence[Any]) -> None:
    """NotRebasedError unless the updates append, and the rows that they were computed from are the same, or may be others."""
    if now.properties.get(ALLOWED) != "true" and not _has_same_rows(before, now):
        raise NotRebasedError(f"its property {ALLOWED} is not true")
    if not commits.appends(wanted):
        raise NotRebasedError("the try has done more than append")


def _has_same_rows(before: TableMetadata, now: TableMetadata) -> bool:
    """Whether others have only compacted the main branch, or not even that."""
    for one in ancestors_of(now.current_snapshot(), now):
        if one.snapshot_id == before.current_snapshot_id:
            return True
        if one.summary is None or one.summary.operation is not Operation.REPLACE:
            return False
    return now.current_snapshot_id == before.current_snapshot_id


def _listed_again(warehouse: Warehouse, table: TableMetadataV2, wanted: Sequence[Any]) -> list[Any]:
    """The updates with new snapshots, each upon the one before and the first upon the newest of the table."""
    moved: list[Any] = []
    parent = table.current_snapshot()
    sequence = table.last_sequence_number
    # What the try has compacted is not what it was last moved onto: by then, others may have appended.
    written_on = {one.snapshot_id: one for one in table.snapshots}
    for update in wanted:
        if not isinstance(update, updates.AddSnapshotUpdate):
            moved.append(update)
            continue
        sequence += 1
        snapshot = update.snapshot
        if commits.appends([update]):
            listed = _appended(warehouse, snapshot, parent)
        else:
            listed = _compacted(warehouse, snapshot, written_on.get(snapshot.parent_snapshot_id or 0), parent)
        written_on[snapshot.snapshot_id] = snapshot
        parent = _upon(warehouse, table, snapshot, parent, listed=listed, sequence=sequence)
        moved.append(update.model_copy(update={"snapshot": parent}))
    return moved


def _appended(warehouse: Warehouse, snapshot: Snapshot, parent: Snapshot | None) -> list[ManifestFile]:
    """The manifests of an append upon those of its new parent. NotRebasedError."""
    own = [_unlisted(one) for one in snapshot.manifests(warehouse.io) if one.added_snapshot_id == snapshot.snapshot_id]
    if any(one.existing_files_count or one.deleted_files_count for one in own):
        raise NotRebasedError("the append has rewritten manifests of other snapshots")
    return [*own, *([] if parent is None else parent.manifests(warehouse.io))]


def _compacted(warehouse: Warehouse, snapshot: Snapshot, base: Snapshot | None, parent: Snapshot | None) -> list[ManifestFile]:
    """The manifests of a compaction of `base`, with those that others have added since. NotRebasedError."""
    if base is None or parent is None:
        raise NotRebasedError("the snapshot that was compacted is gone")
    old, new = ({each.manifest_path: each for each in one.manifests(warehouse.io)} for one in (base, parent))
    gone = [one for path, one in old.items() if path not in new and (one.has_added_files() or one.has_existing_files())]
    added = [one for path, one in new.items() if path not in old]
    if gone or any(one.content is not ManifestContent.DATA or one.existing_files_count or one.deleted_files_count for one in added):
        raise NotRebasedError("others have done more than append to what was compacted")
    listed = snapshot.manifests(warehouse.io)
    return [*(_unlisted(one) if one.added_snapshot_id == snapshot.snapshot_id else one for one in listed), *added]


def _upon(
    warehouse: Warehouse, table: TableMetadataV2, snapshot: Snapshot, parent: Snapshot | None, *, listed: Sequence[ManifestFile],
    sequence: int,
) -> Snapshot:  # fmt: skip
    """The snapshot with these manifests, upon another parent."""
    location = f"{snapshot.manifest_list.rpartition('/')[0]}/snap-{snapshot.snapshot_id}-{uuid.uuid4()}.avro"
    parent_id = None if parent is None else parent.snapshot_id
    with write_manifest_list(
        table.format_version, warehouse.io.new_output(location), snapshot.snapshot_id, parent_id, sequence, "deflate"
    ) as manifests:
        manifests.add_manifests(list(listed))
    assert snapshot.summary is not None, "its operation is known"
    before = None if parent is None or parent.summary is None else parent.summary.additional_properties
    return snapshot.model_copy(
        update={
            "manifest_list": location,
            "parent_snapshot_id": parent_id,
            "sequence_number": sequence,
            "timestamp_ms": max(snapshot.timestamp_ms, table.last_updated_ms),
            "summary": _counted(snapshot.summary, before),
        }
    )


def _counted(summary: Summary, before: Mapping[str, str] | None) -> Summary:
    """What a snapshot counts, with the totals of its new parent."""
    if summary.operation is not Operation.REPLACE:
        return update_snapshot_summaries(summary.model_copy(deep=True), before)
    counted = update_snapshot_summaries(Summary(Operation.OVERWRITE, **summary.additional_properties), before)
    return Summary(Operation.REPLACE, **counted.additional_properties)


def _unlisted(manifest: ManifestFile) -> ManifestFile:
    """The manifest as before it was listed: the new list gives it its sequence number, and its files inherit that."""
    fresh = copy.copy(manifest)
    fresh._data = list(manifest._data)  # pyiceberg keeps what it has read
    if fresh.min_sequence_number == fresh.sequence_number:  # else it has files of older snapshots, with numbers of their own
        fresh.min_sequence_number = UNASSIGNED
    fresh.sequence_number = UNASSIGNED
    return fresh
