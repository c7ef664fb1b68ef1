"""Writes that a repeated run replaces: the rows of its interval, the rows of its task instance, or rows with the same keys.

Each works with Arrow, pandas, Polars and DuckDB through pyiceberg, and with a Spark DataFrame through its session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.authoring import running
from paceline.authoring.asset import TABLE, Asset
from paceline.exceptions import PacelineError
from paceline.tables.conversion import as_arrow
from paceline.tables.replaced import SOURCE, bounds, required, source_of
from paceline.tables.spark_writes import SparkWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction


def overwrite_by_logical_date(table: str | Asset, frame: Any, column: str | None = None) -> None:
    """Replace the rows of `table` in the data interval of the run by those of `frame`, so that a repeated run has no rows twice.

    `column` is the date or the time of a row; by default, the column that the table is partitioned by. If the interval is empty, as
    for most schedules of Airflow 3, the partition that has the logical date is replaced. A time without a zone is UTC, a
    date is one of the time zone of the DAG. A table that does not exist is created, with a partition for each day.

    Columns that `frame` does not have are null. PacelineError if a row of `frame` is outside of the interval, if it has a column
    that the table does not have, if the run has no logical date, or if no column is known.
    """
    replace_interval(table, frame, column)


def replace_interval(table: str | Asset, frame: Any, column: str | None, *, adds: bool = False) -> None:
    """As overwrite_by_logical_date(); it only `adds` rows of the interval after another call of the same task has replaced them."""
    _writer(table, frame).overwrite_interval(column, _context(), adds=adds)


def append_once(table: str | Asset, frame: Any) -> None:
    """Append `frame` to `table`, and delete the rows that this task instance appended earlier, before it was retried or cleared.

    What the same try appended stays. The table gets a column `paceline_source` with a number that stands for the task instance: it
    survives compaction and the expiry of snapshots. A table that does not exist is created.

    Columns that `frame` does not have are null. PacelineError if it has one that the table does not have.
    """
    ti, name = _context()["ti"], name_of(table)
    # Of this try: rows that it has appended stay.
    appended: set[str] = vars(ti).setdefault("_appended_to", set())
    _writer(table, frame).append_once(source_of(ti), adds=name in appended)
    appended.add(name)


def merge(table: str | Asset, frame: Any, key: str | Sequence[str]) -> None:
    """Update the rows of `table` that have the `key` of a row of `frame`, and append its other rows.

    Columns that `frame` does not have keep their values, and are null in new rows. A table that does not exist is created.
    PacelineError if `frame` has a key twice, null in one, or a column that the table does not have.
    """
    keys = [key] if isinstance(key, str) else list(key)
    if not keys:
        raise PacelineError("merge() needs the names of the key columns, as in merge(table, frame, key='id').")
    _writer(table, frame).merge(keys)


def name_of(table: str | Asset) -> str:
    """The name of a table, given by its name or as an asset; PacelineError if it is none."""
    if isinstance(table, Asset) and table.uri.startswith(TABLE):
        return table.uri.removeprefix(TABLE)
    if isinstance(table, str) and "." in table:
        return table
    raise PacelineError(f"{table!r} is not a table; name it as namespace.table, or pass an Asset.table(...).")


def _context() -> Any:
    return running.get_current_context()


def catalog_of(values: Any) -> Catalog:
    """The catalog of the running task."""
    catalog: Catalog = values["ti"].catalog
    return catalog


def _writer(table: str | Asset, frame: Any) -> FrameWriter | SparkWriter:
    name = name_of(table)
    # In an application, there is a session without a task.
    if hasattr(frame, "sparkSession"):
        return SparkWriter(name, frame)
    return FrameWriter(catalog_of(_context()), name, as_arrow(frame))


@dataclass(frozen=True)
class FrameWriter:
    """Writes Arrow rows with pyiceberg. Each method is one commit."""

    catalog: Catalog
    name: str
    rows: pa.Table

    def append_once(self, source: int, *, adds: bool = False) -> None:
        import pyarrow as pa
        from pyiceberg.types import LongType

        # Rows of such a table have those of their own writers.
        rows = self.rows.drop_columns([SOURCE]) if SOURCE in self.rows.column_names else self.rows
        marked = rows.append_column(SOURCE, pa.array([source] * rows.num_rows, pa.int64()))
        table = self._table(marked)
        with table.transaction() as change:
            if SOURCE not in table.schema().column_names:
                with change.update_schema() as schema:
                    schema.add_column(SOURCE, LongType(), "the task instance that wrote the row")
            replace(change, marked, None if adds else _predicate("EqualTo", SOURCE, source))

    def overwrite_interval(self, column: str | None, values: Any, *, adds: bool = False) -> None:
        from pyiceberg.expressions import And

        if not self.catalog.table_exists(self.name):
            self._create(self.rows, required(column, self.name))
        table = self.catalog.load_table(self.name)
        at, transform = partition_time(table, column)
        low, high = bounds(values, str(table.schema().find_field(at).field_type), transform)
        rows = aligned(self.rows, table)
        _check_inside(rows, at, low, high)
        old = And(_predicate("GreaterThanOrEqual", at, low.isoformat()), _predicate("LessThan", at, high.isoformat()))
        with table.transaction() as change:
            replace(change, rows, None if adds else old)

    def merge(self, keys: Sequence[str]) -> None:
        table = self._table(self.rows)
        rows = aligned(self.rows, table)
        if missing := [key for key in keys if key not in self.rows.column_names]:
            raise PacelineError(
                f"There is no column {missing[0]!r} to merge by; the rows have {', '.join(self.rows.column_names)}."
            )
        if without := [key for key in keys if rows.column(key).null_count]:
            raise PacelineError(f"The rows to merge into {self.name} have null in the key {without[0]!r}; filter them out.")
        if rows.group_by(list(keys)).aggregate([]).num_rows < rows.num_rows:
            raise PacelineError(f"The rows to merge into {self.name} have a key ({', '.join(keys)}) twice; keep one of each.")
        if rows.num_rows:
            table.upsert(self._completed(rows, keys, table), join_cols=list(keys))

    def _completed(self, rows: pa.Table, keys: Sequence[str], table: Table) -> pa.Table:
        """The rows with what the table has now in the columns that the frame does not have."""
        import pyarrow as pa
        from pyiceberg.table.upsert_util import create_match_filter

        others = [name for name in rows.column_names if name not in self.rows.column_names]
        if not others:
            return rows
        old = table.scan(create_match_filter(rows, list(keys)), selected_fields=(*keys, *others)).to_arrow()
        places = {key: place for place, key in enumerate(zip(*(old.column(key).to_pylist() for key in keys), strict=True))}
        chosen = [places.get(key) for key in zip(*(rows.column(key).to_pylist() for key in keys), strict=True)]
        for name in others:
            values = old.column(name).take(pa.array(chosen, pa.int64()))
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
        return rows

    def _table(self, rows: pa.Table) -> Table:
        if not self.catalog.table_exists(self.name):
            self._create(rows, None)
        return self.catalog.load_table(self.name)

    def _create(self, rows: pa.Table, by: str | None) -> None:
        create(self.catalog, self.name, rows.schema, [] if by is None else [("day" if _has_time(rows, by) else "identity", by)])


def _has_time(rows: pa.Table, column: str) -> bool:
    import pyarrow as pa

    if column not in rows.column_names:
        raise PacelineError(f"There is no column {column!r} in the rows; they have {', '.join(rows.column_names)}.")
    return bool(pa.types.is_timestamp(rows.schema.field(column).type))


def create(
    catalog: Catalog,
    name: str,
    schema: pa.Schema,
    by: Sequence[tuple[str, str]] = (),
    properties: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Create a table with the columns of an Arrow schema, partitioned by (transform, column), and its namespace if it is new."""
    catalog.create_namespace_if_not_exists(tuple(name.split(".")[:-1]))
    change = catalog.create_table_transaction(name, schema=schema, properties=dict(properties))
    if by:
        from pyiceberg.transforms import parse_transform

        with change.update_spec() as spec:
            for transform, column in by:
                spec.add_field(column, parse_transform(transform), column if transform == "identity" else None)
    change.commit_transaction()
    return catalog.load_table(name)


def _predicate(kind: str, column: str, value: Any) -> Any:
    """A condition of pyiceberg on one column."""
    from pyiceberg import expressions

    return getattr(expressions, kind)(column, value)


def replace(change: Transaction, rows: pa.Table, old: Any) -> None:
    """Delete the rows that the expression `old` selects, if there is one, and append `rows`, in one change."""
    import warnings

    if old is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Delete operation did not match any records")
            change.delete(old)
    if rows.num_rows:
        change.append(aligned(rows, change))


def overwrite_partitions(table: Table, rows: pa.Table) -> None:
    """Replace the partitions that the rows have, with the columns and types of the table. PacelineError.

    pyiceberg does so for partitions by the values of columns alone. Here, whole files are replaced, by their partition.
    """
    from pyiceberg.io.pyarrow import _dataframe_to_data_files
    from pyiceberg.transforms import IdentityTransform

    spec = table.spec()
    if all(isinstance(one.transform, IdentityTransform) for one in spec.fields):
        table.dynamic_partition_overwrite(rows)
        return
    old = list(table.scan().plan_files())
    if any(one.file.spec_id != spec.spec_id for one in old):
        raise PacelineError(
            f"{'.'.join(table.name())} has files of an older partitioning, so its partitions cannot be replaced; use Spark."
        )
    with table.transaction() as change:
        new = list(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))
        partitions = {one.partition for one in new}
        with change.update_snapshot().overwrite() as files:
            for file in new:
                files.append_data_file(file)
            for one in old:
                if one.file.partition in partitions:
                    files.delete_data_file(one.file)


def aligned(rows: pa.Table, table: Table | Transaction) -> pa.Table:
    """The rows with the columns of the table by name, in its order and with its types; missing columns are null.

    PacelineError for columns that the table does not have.
    """
    import pyarrow as pa

    metadata = table.table_metadata if hasattr(table, "table_metadata") else table.metadata
    wanted = metadata.schema().as_arrow()
    if unknown := [name for name in rows.column_names if name not in wanted.names]:
        raise PacelineError(
            f"The table has no column {unknown[0]!r}; add it first, or leave it out. It has {', '.join(wanted.names)}."
        )
    columns = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type) for field in wanted
    ]
    try:
        return pa.table(columns, names=wanted.names).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise PacelineError(f"The rows do not have the types of the table: {error}.") from None


def partition_time(table: Table, column: str | None) -> tuple[str, str]:
    """The column with the date or time of a row, and the transform of its partitions (identity, hour, day, month, year or "")."""
    schema = table.schema()
    fields = {schema.find_column_name(one.source_id) or "": str(one.transform) for one in table.spec().fields}
    if column is not None:
        if column not in schema.column_names:
            raise PacelineError(f"There is no column {column!r} in the table; it has {', '.join(schema.column_names)}.")
        return column, fields.get(column, "")
    timed = [name for name in fields if str(schema.find_field(name).field_type) in {"date", "timestamp", "timestamptz"}]
    if len(timed) != 1:
        raise PacelineError("The table is not partitioned by one column with a date or a time; name the column with column=.")
    return timed[0], fields[timed[0]]


def _check_inside(rows: pa.Table, column: str, low: date, high: date) -> None:
    from pyarrow import compute

    values = rows.column(column)
    ends = compute.min_max(values).as_py()
    if values.null_count or (rows.num_rows and not (low <= ends["min"] and ends["max"] < high)):
        seen = "null" if values.null_count else f"{ends['min']} to {ends['max']}"
        raise PacelineError(
            f"The rows have {seen} in {column!r}, outside of the interval {low} to {high} of this run; a repeated run could not "
            "replace them. Filter them out."
        )
