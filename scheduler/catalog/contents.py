"""The rows of tables, read by DuckDB: whether two states of a table are equal, and the rows in which they differ.

Both read the data files of a state as Iceberg describes it, with its deletes, one batch of rows after the other.
"""

import contextlib
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.table.metadata import TableMetadata

from scheduler.catalog.files import Warehouse

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: Bytes of the data files that are read at once; one file may be larger.
GROUP_BYTES = 64 << 20
#: Checksums are numbers of so many bits, in hexadecimal for people.
BITS = 128


@dataclass(frozen=True, slots=True)
class State:
    """A table at a snapshot: its metadata, its columns then, and its data files."""

    table: TableMetadata
    schema: Schema
    tasks: tuple[FileScanTask, ...]

    @classmethod
    def of(cls, warehouse: Warehouse, location: str, snapshot_id: int | None = None) -> "State":
        """The state of a metadata file, or of one of its snapshots. FileNotFoundError if the file is gone."""
        table = warehouse.metadata(location).table
        scan = DataScan(table_metadata=table, io=warehouse.io, snapshot_id=snapshot_id)
        return cls(table, scan.projection(), tuple(scan.plan_files()))

    def columns(self) -> list[str]:
        """The columns with their types, for people."""
        return [f"{one.name} {one.field_type}{' not null' if one.required else ''}" for one in self.schema.fields]

    def rows(
        self, warehouse: Warehouse, tasks: Sequence[FileScanTask] | None = None, *, group_bytes: int = GROUP_BYTES
    ) -> pa.RecordBatchReader:
        """The rows of all its files, or of some, one batch after the other."""
        wanted = schema_to_pyarrow(self.schema, include_field_ids=False)
        scan = ArrowScan(self.table, warehouse.io, self.schema, AlwaysTrue())
        # A scan reads its files ahead, however slowly its rows are taken.
        groups = _groups(self.tasks if tasks is None else tasks, group_bytes)
        batches = (batch.cast(wanted) for group in groups for batch in scan.to_record_batches(group))
        return pa.RecordBatchReader.from_batches(wanted, batches)


@dataclass(frozen=True, slots=True)
class Summary:
    """How many rows a state has, and the sum of their hashes, which is equal in any order; also of each column alone."""

    rows: int = 0
    checksum: int = 0
    columns: dict[str, int] = field(default_factory=dict)

    def minus(self, other: "Summary") -> "Summary":
        """What was added between: rows that both have do not count."""
        names = self.columns.keys() | other.columns.keys()
        columns = {name: _cut(self.columns.get(name, 0) - other.columns.get(name, 0)) for name in names}
        return Summary(self.rows - other.rows, _cut(self.checksum - other.checksum), columns)

    def plus(self, other: "Summary") -> "Summary":
        """Both together."""
        return self.minus(Summary().minus(other))

    @property
    def text(self) -> str:
        """The checksum, for people."""
        return f"{self.checksum:0{BITS // 4}x}"


def summary(warehouse: Warehouse, state: State, ignored: Collection[str] = ()) -> Summary:
    """Read a state. Columns that are `ignored`, and the one that names the task instance of a row, do not count."""
    from paceline.tables.replaced import SOURCE

    names = [one.name for one in state.schema.fields if one.name not in {*ignored, SOURCE}]
    if not state.tasks or not names:
        return Summary(sum(task.file.record_count for task in state.tasks if not task.delete_files), 0, dict.fromkeys(names, 0))
    hashes = [f"sum(hash({_quoted(name)})::hugeint)" for name in names]
    row = f"sum(hash({', '.join(map(_quoted, names))})::hugeint)"
    with _database() as database:
        database.register("found", state.rows(warehouse))
        found = database.execute(f"select count(*), {row}, {', '.join(hashes)} from found").fetchone()
    assert found is not None, "an aggregate has a row"
    count, checksum, *columns = found
    return Summary(count, _cut(checksum or 0), dict(zip(names, (_cut(one or 0) for one in columns), strict=True)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows that one state has and the other not: how many, and the first ones as values by column."""

    added: int
    removed: int
    added_rows: list[dict[str, Any]]
    removed_rows: list[dict[str, Any]]
    #: The columns that both have, by which rows were compared.
    compared: list[str]


def difference(warehouse: Warehouse, before: State, after: State, limit: int) -> Difference:
    """The rows added and removed between two states, with at most `limit` examples of each. Files that both have are not read."""
    old, new = ({one.name: one for one in each.schema.fields} for each in (before, after))
    compared = [name for name in new if name in old]
    if not compared:
        return Difference(_count(after), _count(before), [], [], [])
    # A column that was dropped and added again has other values in the same file.
    is_same = all(old[name].field_id == new[name].field_id for name in compared)
    shared = _whole_files(before) & _whole_files(after) if is_same else set()
    with _database() as database:
        for name, state in (("old", before), ("new", after)):
            tasks = [task for task in state.tasks if task.delete_files or task.file.file_path not in shared]
            database.register("found", state.rows(warehouse, tasks))
            database.execute(f"create table {name} as select {', '.join(map(_quoted, compared))} from found")
            database.unregister("found")
        _compare(database, {name for name in compared if old[name].field_type != new[name].field_type})
        added, removed = (database.execute(f"select count(*) from {name}").fetchall()[0][0] for name in ("added", "removed"))
        examples = [
            database.sql(f"from {name} order by all limit {limit}").to_arrow_table().to_pylist() for name in ("added", "removed")
        ]
    return Difference(added, removed, examples[0], examples[1], compared)


def _compare(database: "DuckDBPyConnection", changed: Collection[str]) -> None:
    """Make the tables `added` and `removed`. Columns that have `changed` are text in them if their types have nothing in common."""
    import duckdb

    for table, query in (("added", "from new except all from old"), ("removed", "from old except all from new")):
        try:
            database.execute(f"create table {table} as ({query})")
        except (duckdb.BinderException, duckdb.ConversionException):
            if not changed:
                raise
            texts = ", ".join(f"{_quoted(name)}::varchar as {_quoted(name)}" for name in sorted(changed))
            for name in ("old", "new"):
                database.execute(f"create or replace table {name} as select * replace ({texts}) from {name}")
            database.execute(f"create table {table} as ({query})")


def _groups(tasks: Iterable[FileScanTask], group_bytes: int) -> Iterator[list[FileScanTask]]:
    """The files in groups of some size, which are in memory at once."""
    group: list[FileScanTask] = []
    for task in tasks:
        if group and sum(one.file.file_size_in_bytes for one in (*group, task)) > group_bytes:
            yield group
            group = []
        group.append(task)
    if group:
        yield group


def _whole_files(state: State) -> set[str]:
    return {task.file.file_path for task in state.tasks if not task.delete_files}


def _count(state: State) -> int:
    return sum(task.file.record_count for task in state.tasks)


def _cut(number: int) -> int:
    return int(number) % (1 << BITS)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def _database() -> "Iterator[DuckDBPyConnection]":
    """A database that may use a temporary folder instead of memory."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="paceline-duckdb-") as folder:
        with duckdb.connect(Path(folder) / "rows.db", config={"temp_directory": folder}) as database:
            database.execute("set TimeZone = 'UTC'")
            yield database
