"""DuckDB on the Iceberg tables of a catalog. It reads their files itself where it can, and pyiceberg commits what it writes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.authoring.frames import DataFrameReference
from paceline.exceptions import PacelineError
from paceline.tables import sql, views, writes
from paceline.tables.sql import Script, Statement
from paceline.tables.views import ViewQuery
from paceline.tables.writes import SOURCE

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from pyiceberg.table import Table

Rows = list[tuple[Any, ...]]
#: Stores the rows of an INSERT in the table with this name.
Insert = Callable[[str, "pa.Table"], None]
#: The types of columns that DuckDB reads from Parquet by field ID, with its names for them. Tables with others go through Arrow.
_TYPES = {
    "boolean": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "date": "DATE", "time": "TIME",
    "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMP WITH TIME ZONE", "string": "VARCHAR", "uuid": "UUID", "binary": "BLOB",
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_NAME_MAPPING = "schema.name-mapping.default"
_TRANSFORM = re.compile(r"(\w+)\((?:(\d+),\s*)?\"?(\w+)\"?(?:,\s*(\d+))?\)")
_TRANSFORMS = {"years": "year", "months": "month", "days": "day", "hours": "hour", "date": "day"}


@dataclass(frozen=True)
class DuckDbEngine:
    """Runs scripts in the dialect of DuckDB. Each statement sees what the ones before it wrote."""

    #: None for scripts that name no table of it.
    catalog: Any
    #: In place of an append, for the INSERT statements.
    insert: Insert | None = None
    #: DataFrames of other tasks, by the names that statements have for them.
    frames: Mapping[str, DataFrameReference] = field(default_factory=dict)

    def run(self, script: Script, parameters: Mapping[str, Any], limit: int) -> Rows | None:
        """Run the statements; the rows of the last one, if it is a query. PacelineError if it has more than `limit`."""
        from sqlglot import exp

        rows: Rows | None = None
        for one in script.statements:
            if isinstance(one.tree, exp.Create | exp.Drop | exp.Alter) and one.tree.args.get("kind") == "VIEW":
                # Its database is gone after the statement, and its view with it.
                raise PacelineError(f"The engine duckdb cannot run {one.tree.key.upper()} VIEW; use engine='spark'.")
            rows = None
            with self._database(one) as database:
                if one.target is None:
                    rows = self._query(database, one, parameters, limit)
                elif isinstance(one.tree, exp.Insert):
                    self._insert(database, one, parameters)
                elif isinstance(one.tree, exp.Create):
                    self._create(database, one, parameters)
                elif isinstance(one.tree, exp.Drop):
                    self._drop(one)
                elif isinstance(one.tree, exp.Merge | exp.Delete | exp.Update):
                    self._change(database, one, parameters)
                else:
                    raise PacelineError(f"The engine duckdb cannot run {one.tree.key.upper()} on {one.target}; use engine='spark'.")
        return rows

    @contextmanager
    def _database(self, statement: Statement) -> Iterator[DuckDBPyConnection]:
        """A database `lake` with the tables and views that the statement reads. It spills to a temporary folder."""
        import duckdb
        from sqlglot import exp

        with tempfile.TemporaryDirectory(prefix="paceline-duckdb-") as folder:
            with duckdb.connect(config={"temp_directory": folder}) as database:
                database.execute(f"attach '{Path(folder) / 'tables.db'}' as {sql.CATALOG}; use {sql.CATALOG}; set TimeZone = 'UTC'")
                # MERGE, DELETE and UPDATE change a copy.
                copied = [statement.target] if isinstance(statement.tree, exp.Merge | exp.Delete | exp.Update) else []
                found = views.found(self.catalog, [name for name in (*copied, *statement.reads) if name is not None])
                wanted = sql.names_in([statement.tree, *(one.tree for one in found.views)])
                for name in found.tables:
                    is_copied = name in copied
                    show(database, name, self.catalog.load_table(name), None if is_copied else wanted, copied=is_copied)
                for view in found.views:
                    show_view(database, view)
                for name, frame in self.frames.items():
                    beside = sql.names_beside([statement], name)
                    if beside is None or beside:
                        show_frame(database, name, frame.named_in(beside))
                yield database

    def _query(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any], limit: int) -> Rows | None:
        cursor = database.execute(one.text, _used(one.tree, parameters))
        if cursor.description is None:
            return None
        rows = cursor.fetchmany(limit + 1)
        if len(rows) > limit:
            raise PacelineError(f"The query returns more than {limit:,} rows; write them into a table, or add a LIMIT.")
        return rows

    def _result(self, database: DuckDBPyConnection, query: Any, parameters: Mapping[str, Any]) -> pa.Table:
        return database.sql(query.sql(dialect="duckdb"), params=_used(query, parameters)).to_arrow_table()

    def _insert(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any]) -> None:
        assert one.target is not None
        tree: Any = one.tree
        query = sql.query_of(tree)
        if query is None or tree.args.get("partition") or tree.args.get("conflict") or tree.args.get("where"):
            raise PacelineError(
                f"INSERT INTO {one.target}: the engine duckdb knows INSERT [OVERWRITE] with a query or VALUES; use MERGE."
            )
        rows = self._result(database, query, parameters)
        table = self.catalog.load_table(one.target)
        if not tree.args.get("by_name"):
            given = [column.name for column in tree.this.expressions] if hasattr(tree.this, "expressions") else []
            # Of the column that append_once adds, the query knows nothing.
            names = given or [name for name in table.schema().as_arrow().names if name != SOURCE]
            if len(names) != rows.num_columns:
                raise PacelineError(
                    f"INSERT INTO {one.target}: the query has {rows.num_columns} columns, and {len(names)} are needed."
                )
            rows = rows.rename_columns(names)
        if self.insert is not None and not tree.args.get("overwrite"):
            self.insert(one.target, rows)
        elif not tree.args.get("overwrite"):
            table.append(writes.aligned(rows, table))
        elif table.spec().is_unpartitioned():
            overwrite(table, rows)
        elif rows.num_rows:
            table.dynamic_partition_overwrite(writes.aligned(rows, table))

    def _create(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any]) -> None:
        assert one.target is not None
        tree: Any = one.tree
        exists = self.catalog.table_exists(one.target)
        if exists and tree.args.get("exists"):
            return
        if exists and not tree.args.get("replace"):
            raise PacelineError(f"CREATE TABLE {one.target}: it exists; write CREATE OR REPLACE TABLE, INSERT or DROP TABLE.")
        partitions = list(_partitions(tree))
        query = sql.query_of(tree)
        rows: Any
        if query is None:
            plain = tree.copy()
            plain.set("properties", None)
            database.execute(f'create schema if not exists "{one.target.rpartition(".")[0]}"')
            database.execute(plain.sql(dialect="duckdb"))
            rows = database.sql(f"from {quoted(one.target)} limit 0").to_arrow_table()
        else:
            rows = self._result(database, query, parameters)
        if exists:
            self.catalog.drop_table(one.target)
        table = writes.create(self.catalog, one.target, rows.schema, partitions)
        if rows.num_rows:
            table.append(writes.aligned(rows, table))

    def _drop(self, one: Statement) -> None:
        assert one.target is not None
        if not one.tree.args.get("exists") or self.catalog.table_exists(one.target):
            self.catalog.drop_table(one.target)

    def _change(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any]) -> None:
        """Run MERGE, DELETE or UPDATE on a copy of the table, and write the whole copy if it has changed any row."""
        assert one.target is not None
        table = self.catalog.load_table(one.target)
        changed = database.execute(one.text, _used(one.tree, parameters)).fetchone()
        if changed is not None and changed[0]:
            overwrite(table, database.sql(f"from {quoted(one.target)}").to_arrow_table())


def overwrite(table: Table, rows: pa.Table) -> None:
    """Replace all rows of a table, in one change."""
    from pyiceberg.expressions import AlwaysTrue

    with table.transaction() as change:
        writes.replace(change, writes.aligned(rows, table), AlwaysTrue())


def quoted(name: str) -> str:
    """The name of a table for a statement of DuckDB."""
    return ".".join(f'"{part}"' for part in name.rsplit(".", 1))


def show(database: DuckDBPyConnection, name: str, table: Table, wanted: set[str] | None, *, copied: bool = False) -> None:
    """Make the rows of an Iceberg table readable under its name, as a view or as a copy.

    `wanted` are the columns that matter, in lower case.
    """
    database.execute(f'create schema if not exists "{name.rpartition(".")[0]}"')
    source = _files(table)
    if source is None:
        schema = table.schema()
        columns = [one for one in schema.column_names if "." not in one and (wanted is None or one.lower() in wanted)]
        source = f"paceline_arrow_{hash(name) & 0xFFFFFFFF:x}"
        database.register(source, table.scan(selected_fields=tuple(columns or schema.column_names[:1])).to_arrow())
    database.execute(f"create {'table' if copied else 'view'} {quoted(name)} as from {source}")


def show_view(database: DuckDBPyConnection, view: ViewQuery) -> None:
    """Make a view of the catalog readable under its name. PacelineError if DuckDB refuses its query."""
    import duckdb

    database.execute(f'create schema if not exists "{view.name.rpartition(".")[0]}"')
    inner = ", ".join(_quoted(f"column {place}") for place in range(len(view.columns)))
    columns = []
    for place, (name, shown, kind) in enumerate(view.columns):
        value = _quoted(f"column {place}" if name is None else name)
        # The types of Spark: DuckDB's own sum of integers has one that Iceberg does not have.
        columns.append(f"{value}{f'::{_type(kind)}' if _type(kind) else ''} as {_quoted(shown)}")
    source = "source" if view.columns and view.columns[0][0] is not None else f"source ({inner})"
    try:
        database.execute(f"create view {quoted(view.name)} as select {', '.join(columns)} from ({view.text}) as {source}")
    except duckdb.Error as error:
        raise views.refused(view.name, str(error)) from None


def show_frame(database: DuckDBPyConnection, name: str, frame: DataFrameReference) -> None:
    """Make the DataFrame of another task readable under a name. DuckDB reads only the rows and columns that it needs."""
    from fsspec.core import url_to_fs
    from pyarrow import dataset

    files, folder = url_to_fs(frame.path)
    source = f"paceline_frame_{name}"
    database.register(source, dataset.dataset(folder, filesystem=files, format="parquet"))
    columns = ", ".join(map(_quoted, frame.columns))
    database.execute(f'create view "{name}" as select {columns} from "{source}"')


def _files(table: Table) -> str | None:
    """What reads the files of a table by field ID; None if DuckDB cannot read them as they are."""
    types = [_type(str(field.field_type)) for field in table.schema().fields]
    if None in types or _NAME_MAPPING in table.properties or any(one.initial_default is not None for one in table.schema().fields):
        return None
    tasks = list(table.scan().plan_files())
    if not tasks:
        columns = [f'null::{kind} as "{field.name}"' for field, kind in zip(table.schema().fields, types, strict=True)]
        return f"(select {', '.join(columns)} limit 0)"
    paths = [one.file.file_path.removeprefix("file://") for one in tasks]
    if any(one.delete_files for one in tasks) or not all(path.startswith("/") for path in paths):
        return None
    fields = [
        f"{field.field_id}: {{name: {_literal(field.name)}, type: '{kind}', default_value: null}}"
        for field, kind in zip(table.schema().fields, types, strict=True)
    ]
    files = ", ".join(map(_literal, paths))
    return f"read_parquet([{files}], hive_partitioning = false, schema = map {{{', '.join(fields)}}})"


def _type(kind: str) -> str | None:
    found = _DECIMAL.fullmatch(kind)
    return f"DECIMAL({found[1]}, {found[2]})" if found else _TYPES.get(kind)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _partitions(tree: Any) -> Iterator[tuple[str, str]]:
    """The transform and the column of each partition in PARTITIONED BY."""
    from sqlglot import exp

    for given in tree.find_all(exp.PartitionedByProperty):
        for one in given.this.expressions:
            text = one.sql(dialect="spark") if not isinstance(one, exp.Identifier | exp.Column) else one.name
            found = _TRANSFORM.fullmatch(text)
            if found is None:
                yield "identity", text
                continue
            name, width = found[1].lower(), found[2] or found[4]
            name = _TRANSFORMS.get(name, name)
            yield (f"{name}[{width}]" if width else name), found[3]


def _used(tree: Any, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values of the parameters in a statement, or in a part of one; DuckDB refuses others."""
    return {name: parameters[name] for name in sql.parameters_of(tree) & parameters.keys()} or None
