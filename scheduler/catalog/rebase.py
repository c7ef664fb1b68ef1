"""Moves what a try has written onto newer tables, without the engine that wrote it.

There are two cases. If only upkeep came between, such as the expiry of snapshots, the updates of the try are applied to the newer
metadata. If others changed rows, it must be appends, and the author must have allowed it: the manifests of the appended files are
listed again, after those of the newer snapshot.
"""

import copy
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.manifest import ManifestFile, write_manifest_list
from pyiceberg.table import update as updates
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Snapshot, update_snapshot_summaries

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
    if _rows(before.table) == _rows(now.table):
        moved = list(wanted)
    elif now.table.properties.get(ALLOWED) != "true":
        raise NotRebasedError(f"its property {ALLOWED} is not true")
    elif not commits.appends(wanted):
        raise NotRebasedError("the try has done more than append")
    elif _shape(before.table) != _shape(now.table):
        raise NotRebasedError("its schema or partitioning has changed")
    else:
        moved = _listed_again(warehouse, now.table, wanted)
    try:
        table = updates.update_table_metadata(now.table, tuple(moved), metadata_location=now.location)
    except (ValueError, ValidationError) as error:
        raise NotRebasedError(f"the updates do not fit it any more ({error})") from None
    return Rebased(warehouse.write(table, now.location), files.facts(table, now.table))


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


def _listed_again(warehouse: Warehouse, table: TableMetadataV2, wanted: Sequence[Any]) -> list[Any]:
    """The updates of appends with new snapshots, each upon the one before and the first upon the newest of the table."""
    moved: list[Any] = []
    parent = table.current_snapshot()
    sequence = table.last_sequence_number
    for update in wanted:
        if not isinstance(update, updates.AddSnapshotUpdate):
            moved.append(update)
            continue
        sequence += 1
        parent = _upon(warehouse, table, update.snapshot, parent, sequence)
        moved.append(update.model_copy(update={"snapshot": parent}))
    return moved


def _upon(warehouse: Warehouse, table: TableMetadataV2, snapshot: Snapshot, parent: Snapshot | None, sequence: int) -> Snapshot:
    own = [_unlisted(one) for one in snapshot.manifests(warehouse.io) if one.added_snapshot_id == snapshot.snapshot_id]
    if any(one.existing_files_count or one.deleted_files_count for one in own):
        raise NotRebasedError("the append has rewritten manifests of other snapshots")
    location = f"{snapshot.manifest_list.rpartition('/')[0]}/snap-{snapshot.snapshot_id}-{uuid.uuid4()}.avro"
    parent_id = None if parent is None else parent.snapshot_id
    with write_manifest_list(
        table.format_version, warehouse.io.new_output(location), snapshot.snapshot_id, parent_id, sequence, "deflate"
    ) as manifests:
        manifests.add_manifests([*own, *([] if parent is None else parent.manifests(warehouse.io))])
    assert snapshot.summary is not None, "an append has a summary"
    before = None if parent is None or parent.summary is None else parent.summary.additional_properties
    return snapshot.model_copy(
        update={
            "manifest_list": location,
            "parent_snapshot_id": parent_id,
            "sequence_number": sequence,
            "timestamp_ms": max(snapshot.timestamp_ms, table.last_updated_ms),
            "summary": update_snapshot_summaries(snapshot.summary.model_copy(deep=True), before),
        }
    )


def _unlisted(manifest: ManifestFile) -> ManifestFile:
    """The manifest as before it was listed: the new list gives it its sequence number, and its files inherit that."""
    fresh = copy.copy(manifest)
    fresh._data = list(manifest._data)  # pyiceberg keeps what it has read
    fresh.sequence_number = fresh.min_sequence_number = UNASSIGNED
    return fresh
