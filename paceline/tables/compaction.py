"""Compaction: joins the small files of an Iceberg table, so that a reader opens fewer. The rows stay what they are.

A pass joins files of up to so many bytes, and commits once: a snapshot with the operation `replace`. The next pass joins what is
left. A pass that is killed has changed nothing, and leaves files that no version of the table names.

pyiceberg reads and writes the rows, so no Java is needed. The files of one partition that become one file are in memory at the
same time. A file with rows that were deleted by a delete file is left alone: joined, it would need a new sequence number and new
totals, which pyiceberg does not keep. Spark's rewrite_data_files does both.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, pyarrow_to_schema, write_file
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import FileScanTask, Table, WriteTask
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.utils.bin_packing import ListPacker

from paceline.exceptions import PacelineError

#: Iceberg's property for the size of a file, and the size if a table does not have it. Iceberg's own 512 MiB may become 5 GiB
#: in memory.
SIZE, DEFAULT_SIZE = "write.target-file-size-bytes", 128 << 20
#: A file below this share of that size is small.
SMALL = 0.75
#: So many small files are joined, or fewer that together are no small file any more: else a file would be written again each day.
FEWEST = 5
#: A file counts as at least so many bytes of a pass, for the time that it takes to open it.
OPENING = 1 << 20
#: Files of a partition that are looked at for one that fits beside the others.
LOOKBACK = 10
#: Iceberg's property of a table that lets nobody delete its files: those that a compaction replaces would stay forever.
GC = "gc.enabled"


@dataclass(frozen=True, slots=True)
class Plan:
    """The files that one pass joins, each group into one, and how many it leaves for the next pass."""

    groups: list[list[FileScanTask]] = field(default_factory=list)
    left: int = 0
    #: Why no file of the table is ever joined; empty if some may be.
    reason: str = ""

    @property
    def files(self) -> int:
        """The number of files that a pass joins."""
        return sum(map(len, self.groups))


@dataclass(frozen=True, slots=True)
class Compacted:
    """The number of files that were joined, of those that they have become, and of those that are left for the next pass."""

    files: int
    into: int
    left: int
    reason: str = ""


class _Replacement(_OverwriteFiles):
    """Replaces files by others with the same rows. pyiceberg counts as for an overwrite, and has no snapshot of this kind."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        return Summary(Operation.REPLACE, **super()._summary(snapshot_properties).additional_properties)


def plan(table: Table, most_bytes: int) -> Plan:
    """What a pass of up to `most_bytes` has to do for a table."""
    snapshot = table.current_snapshot()
    if snapshot is None or (snapshot.summary is not None and snapshot.summary.get("total-data-files") in {"0", "1"}):
        return Plan()
    if reason := _reason(table):
        return Plan(reason=reason)
    size = int(table.properties.get(SIZE, DEFAULT_SIZE))
    partitions: dict[Record, list[FileScanTask]] = {}
    # The list of manifests begins with the newest, so this is nearly the order in which the rows were written.
    for task in reversed(list(table.scan().plan_files())):
        if _may_be_joined(table, task, size):
            partitions.setdefault(task.file.partition, []).append(task)
    packer: ListPacker[FileScanTask] = ListPacker(size, LOOKBACK, largest_bin_first=False)
    groups: list[list[FileScanTask]] = []
    left = 0
    for tasks in partitions.values():
        for group in packer.pack(tasks, lambda task: task.file.file_size_in_bytes):
            if not _is_worth_it(group, size):
                continue
            chosen = list(_affordable(group, most_bytes))
            if len(chosen) < 2:
                chosen = [] if groups else group[:2]  # so that each pass brings the table further
            if chosen:
                groups.append(chosen)
                most_bytes -= sum(map(_cost, chosen))
            left += len(group) - len(chosen)
    return Plan(groups, left)


def _reason(table: Table) -> str:
    """Why the files of a table are left alone; empty if they are not."""
    snapshot = table.current_snapshot()
    assert snapshot is not None, "a table without rows is never asked"
    if table.properties.get(GC) == "false":
        return f"its property {GC} is false, so the files that were joined would stay"
    if table.properties.get("write.format.default", "parquet") != "parquet":
        return "its files are not Parquet"
    sources = [one.source_id for one in table.spec().fields]
    if len(set(sources)) < len(sources):
        return "it is partitioned twice by one column"
    deletes = [one for one in snapshot.manifests(table.io) if one.content is ManifestContent.DELETES]
    if any(
        entry.data_file.content is DataFileContent.EQUALITY_DELETES
        for one in deletes
        for entry in one.fetch_manifest_entry(table.io, discard_deleted=True)
    ):
        return "it has equality deletes, which pyiceberg does not read"
    return ""


def _may_be_joined(table: Table, task: FileScanTask, size: int) -> bool:
    file = task.file
    return (
        file.file_size_in_bytes < size * SMALL
        and file.record_count > 0
        and file.file_format is FileFormat.PARQUET
        and file.spec_id == table.spec().spec_id
        and not task.delete_files
    )


def _is_worth_it(group: Sequence[FileScanTask], size: int) -> bool:
    return len(group) >= FEWEST or (len(group) > 1 and sum(task.file.file_size_in_bytes for task in group) >= size * SMALL)


def _cost(task: FileScanTask) -> int:
    return max(task.file.file_size_in_bytes, OPENING)


def _affordable(group: Sequence[FileScanTask], most_bytes: int) -> Iterator[FileScanTask]:
    for task in group:
        most_bytes -= _cost(task)
        if most_bytes < 0:
            return
        yield task


def compact(table: Table, most_bytes: int) -> Compacted:
    """Join small files of a table, of up to `most_bytes` together, with one commit. PacelineError if its files disagree with it."""
    planned = plan(table, most_bytes)
    if planned.groups:
        marked = uuid.uuid4()
        joined = [_join(table, group, marked, number) for number, group in enumerate(planned.groups)]
        with table.transaction() as change:
            replacement = _Replacement(Operation.OVERWRITE, change, table.io)
            for file in joined:
                replacement.append_data_file(file)
            for group in planned.groups:
                for task in group:
                    replacement.delete_data_file(task.file)
            replacement.commit()
    return Compacted(planned.files, len(planned.groups), planned.left, planned.reason)


def _join(table: Table, group: Sequence[FileScanTask], marked: uuid.UUID, number: int) -> DataFile:
    """Write the rows of files of one partition into one file."""
    metadata = table.metadata
    rows = ArrowScan(metadata, table.io, table.schema(), AlwaysTrue()).to_table(group)
    if rows.num_rows != (counted := sum(task.file.record_count for task in group)):
        raise PacelineError(
            f"{len(group)} files of {'.'.join(table.name())} have {rows.num_rows} rows, and the table counts {counted}: they are"
            " not joined. Look for the program that changed them."
        )
    schema = pyarrow_to_schema(rows.schema, table.schema().name_mapping, format_version=metadata.format_version)
    key = _key(table, group[0].file.partition)
    task = WriteTask(marked, number, schema, rows.combine_chunks().to_batches(), partition_key=key)
    (file,) = write_file(table.io, metadata, iter([task]))
    if file.partition != group[0].file.partition:
        raise PacelineError(f"pyiceberg cannot write the partition {group[0].file.partition} of {'.'.join(table.name())}.")
    return file


def _key(table: Table, partition: Record) -> PartitionKey | None:
    spec = table.spec()
    if spec.is_unpartitioned():
        return None
    values = [PartitionFieldValue(one, partition[position]) for position, one in enumerate(spec.fields)]
    return PartitionKey(values, spec, table.schema())


def due(catalog: Catalog, namespaces: Sequence[str] | None, most_bytes: int) -> Iterator[tuple[str, int]]:
    """The tables with files to join, each with the number of these. One that may not be read, or is gone meanwhile, is left out."""
    for namespace in _namespaces(catalog, ()) if namespaces is None else (tuple(one.split(".")) for one in namespaces):
        try:
            names = catalog.list_tables(namespace)
        except (NoSuchNamespaceError, ForbiddenError):
            continue
        for name in names:
            try:
                planned = plan(catalog.load_table(name), most_bytes)
            except (NoSuchTableError, ForbiddenError, FileNotFoundError):
                continue
            if planned.groups:
                yield ".".join(name), planned.files + planned.left


def _namespaces(catalog: Catalog, parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for namespace in catalog.list_namespaces(parent):
        yield namespace
        yield from _namespaces(catalog, namespace)
