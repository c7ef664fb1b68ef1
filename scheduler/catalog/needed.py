"""Which files tables and their snapshots need."""

from collections.abc import Iterable

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from scheduler.catalog.files import Warehouse


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
