"""DuckDB on the Iceberg tables of a catalog. It reads their files itself where it can, and pyiceberg commits what it writes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.authoring.frames import DataFrameReference
from paceline.exceptions import PacelineError
from paceline.tables import definitions, sql, views, writes
from paceline.tables.conversion import as_arrow
from paceline.tables.replaced import SOURCE
from paceline.tables.sql import Script, Statement
from paceline.tables.views import ViewQuery

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
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
#: The parts of an INSERT that pyiceberg cannot keep.
_NOT_IN_INSERT = ("partition", "conflict", "where", "alternative", "ignore", "returning", "exists", "default")
#: The name of the table that has the columns of a CREATE TABLE for a moment.
_COLUMNS = "paceline_columns"


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
        """Run the statements; the rows of the last one, if it is a query. PacelineError if it has more than `limit`.

        They share a database, so temporary tables and views, macros and settings stay until the last one.
        """
        rows: Rows | None = None
        behind: list[Statement] = []
        with _database() as database:
            for one in script.statements:
                _refuse(one)
                rows = None
                with self._shown(database, one, behind):
                    rows = self._run(database, one, parameters, limit)
                if _is_lazy(one.tree):
                    behind.append(one)
        return rows

    @contextmanager
    def _shown(self, database: DuckDBPyConnection, statement: Statement, behind: Sequence[Statement]) -> Iterator[None]:
        """While the statement runs, the tables and views that it reads, or that a temporary view of `behind` reads."""
        # MERGE, DELETE and UPDATE change a copy.
        copied = statement.target if _changes_rows(statement.tree) else None
        names = [name for one in (statement, *behind) for name in one.reads]
        found = views.found(self.catalog, dict.fromkeys([*([copied] if copied else []), *names]))
        wanted = sql.names_in([statement.tree, *(one.tree for one in behind), *(one.tree for one in found.views)])
        for name in found.tables:
            copy = _place(statement.tree, name) if name == copied else ""
            show(database, name, self.catalog.load_table(name), None if copy else wanted, copy=copy)
            _link(database, name, copy)
        for view in found.views:
            show_view(database, view)
            _link(database, view.name)
        for name, frame in self.frames.items():
            beside = sql.names_beside([statement, *behind], name)
            if beside is None or beside:
                show_frame(database, name, frame.named_in(beside))
        yield
        # The next statement sees what this one wrote, and rows in memory are released.
        for name in (*(view.name for view in found.views), *found.tables):
            hide(database, name, copy=_place(statement.tree, name) if name == copied else "")

    def _run(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any], limit: int) -> Rows | None:
        from sqlglot import exp

        tree = one.tree
        if isinstance(tree, exp.Transaction | exp.Commit):
            return None  # all that a task writes appears together, with its success
        if isinstance(tree, exp.Create) and tree.args.get("kind") == "SCHEMA":
            name = ".".join(part.name for part in tree.this.parts)
            self.catalog.create_namespace_if_not_exists(tuple(name.removeprefix(f"{sql.CATALOG}.").split(".")))
        elif one.target is None:
            return self._query(database, one, parameters, limit)
        elif isinstance(tree, exp.Insert):
            self._insert(database, one, parameters)
        elif isinstance(tree, exp.Create):
            self._create(database, one, parameters)
        elif isinstance(tree, exp.Drop):
            self._drop(one)
        elif _changes_rows(tree):
            self._change(database, one, parameters)
        elif isinstance(tree, exp.TruncateTable):
            table = self.catalog.load_table(one.target)
            overwrite(table, table.schema().as_arrow().empty_table())
        else:
            raise PacelineError(f"The engine duckdb cannot run {tree.key.upper()} on {one.target}; use engine='spark'.")
        return None

    def _query(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any], limit: int) -> Rows | None:
        from sqlglot import exp

        cursor = database.execute(one.text, _used(one.tree, parameters))
        if cursor.description is None or isinstance(one.tree, exp.DDL | exp.DML):
            return None
        rows = cursor.fetchmany(limit + 1)
        if len(rows) > limit:
            raise PacelineError(f"The query returns more than {limit:,} rows; write them into a table, or add a LIMIT.")
        return rows

    def _result(self, database: DuckDBPyConnection, query: Any, parameters: Mapping[str, Any]) -> pa.Table:
        return as_arrow(database.sql(query.sql(dialect="duckdb"), params=_used(query, parameters)).to_arrow_table())

    def _insert(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any]) -> None:
        assert one.target is not None
        tree: Any = one.tree
        query = sql.query_of(tree)
        if query is None or any(tree.args.get(each) for each in _NOT_IN_INSERT):
            raise PacelineError(
                f"INSERT INTO {one.target}: the engine duckdb knows INSERT [OVERWRITE] with a query or VALUES; use MERGE."
            )
        table = self.catalog.load_table(one.target)
        result = database.sql(query.sql(dialect="duckdb"), params=_used(query, parameters))
        given = result.columns
        if not tree.args.get("by_name"):
            given = [column.name for column in tree.this.expressions] if hasattr(tree.this, "expressions") else []
            # Of the column that append_once adds, the query knows nothing.
            given = given or [name for name in table.schema().as_arrow().names if name != SOURCE]
            if len(given) != len(result.columns):
                raise PacelineError(
                    f"INSERT INTO {one.target}: the query has {len(result.columns)} columns, and {len(given)} are needed."
                )
        rows = _typed(result, _spelled(given, table), table)
        if self.insert is not None and not tree.args.get("overwrite"):
            self.insert(one.target, rows)
        elif not tree.args.get("overwrite"):
            table.append(writes.aligned(rows, table))
        elif table.spec().is_unpartitioned():
            overwrite(table, rows)
        elif rows.num_rows:
            writes.overwrite_partitions(table, writes.aligned(rows, table))

    def _create(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any]) -> None:
        assert one.target is not None
        tree: Any = one.tree
        exists = self.catalog.table_exists(one.target)
        if exists and tree.args.get("exists"):
            return
        if exists and not tree.args.get("replace"):
            raise PacelineError(f"CREATE TABLE {one.target}: it exists; write CREATE OR REPLACE TABLE, INSERT or DROP TABLE.")
        definition = definitions.of(tree, one.target)
        query = sql.query_of(tree)
        rows = self._columns(database, tree) if query is None else self._result(database, query, parameters)
        if exists:
            self.catalog.drop_table(one.target)
        table = writes.create(
            self.catalog, one.target, definition.schema(rows.schema), definition.partitions, definition.properties
        )
        if rows.num_rows and definition.has_rows:
            table.append(writes.aligned(rows, table))

    def _columns(self, database: DuckDBPyConnection, tree: Any) -> Any:
        """An empty Arrow table with the columns of a CREATE TABLE without a query, in the types of DuckDB."""
        from sqlglot import exp

        plain = tree.copy()
        plain.set("properties", exp.Properties(expressions=[exp.TemporaryProperty()]))
        plain.set("exists", None)
        plain.set("replace", None)
        plain.find(exp.Table).replace(exp.to_table(_COLUMNS))
        database.execute(plain.sql(dialect="duckdb"))
        rows = database.sql(f"from {_COLUMNS}").to_arrow_table()
        database.execute(f"drop table {_COLUMNS}")
        return as_arrow(rows)

    def _drop(self, one: Statement) -> None:
        for name in one.writes:
            if not one.tree.args.get("exists") or self.catalog.table_exists(name):
                self.catalog.drop_table(name)

    def _change(self, database: DuckDBPyConnection, one: Statement, parameters: Mapping[str, Any]) -> None:
        """Run MERGE, DELETE or UPDATE on a copy of the table, and write the whole copy if it has changed any row."""
        assert one.target is not None
        if one.tree.args.get("returning"):
            raise PacelineError(f"{one.tree.key.upper()} {one.target}: the engine duckdb knows no RETURNING; use a query.")
        table = self.catalog.load_table(one.target)
        changed = database.execute(one.text, _used(one.tree, parameters)).fetchone()
        if changed is not None and changed[0]:
            overwrite(table, database.sql(f"from {quoted(one.target)}").to_arrow_table())


@contextmanager
def _database() -> Iterator[DuckDBPyConnection]:
    """An empty database `lake`. It spills to a temporary folder."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="paceline-duckdb-") as folder:
        with duckdb.connect(config={"temp_directory": folder}) as database:
            database.execute(f"attach '{Path(folder) / 'tables.db'}' as {sql.CATALOG}; use {sql.CATALOG}; set TimeZone = 'UTC'")
            yield database


def _changes_rows(tree: Any) -> bool:
    from sqlglot import exp

    return isinstance(tree, exp.Merge | exp.Delete | exp.Update)


def _is_lazy(tree: Any) -> bool:
    """Whether a statement defines something that reads tables in later statements: a temporary view or a macro."""
    from sqlglot import exp

    return isinstance(tree, exp.Create) and tree.args.get("kind") != "TABLE"


def _refuse(one: Statement) -> None:
    """PacelineError for a statement that would seem to succeed, and whose effect nobody would see."""
    from sqlglot import exp

    tree: Any = one.tree
    kind = str(tree.args.get("kind") or "").upper()
    if isinstance(tree, exp.Rollback):
        raise PacelineError("ROLLBACK: a task that fails publishes nothing; let it fail, or leave out what it must not write.")
    if isinstance(tree, exp.Comment) or (isinstance(tree, exp.Copy) and tree.args.get("kind") and one.reads):
        raise PacelineError(f"The engine duckdb cannot run {tree.key.upper()} on {', '.join(one.reads)}; use INSERT or Spark.")
    if not isinstance(tree, exp.Create | exp.Drop | exp.Alter) or kind not in {"VIEW", "TABLE"} or one.target is not None:
        return
    if kind == "VIEW" and not _is_local(tree):
        # The database is gone after the last statement, and its view with it.
        raise PacelineError(
            f"The engine duckdb cannot run {tree.key.upper()} VIEW; use engine='spark', or CREATE TEMP VIEW for this task alone."
        )
    if kind == "TABLE" and isinstance(tree, exp.Create) and not _is_local(tree) and not _is_elsewhere(tree):
        raise PacelineError(
            f"CREATE TABLE {tree.this.name or tree.this.this.name}: name it with its namespace, as in sales.orders, or write CREATE"
            " TEMP TABLE for a table of this task alone."
        )


def _is_local(tree: Any) -> bool:
    """Whether a statement is about a temporary table or view: of CREATE, by its word; else by a name without a namespace."""
    from sqlglot import exp

    if isinstance(tree, exp.Create):
        return tree.find(exp.TemporaryProperty) is not None
    table = tree.find(exp.Table)
    return table is not None and not table.db


def _is_elsewhere(tree: Any) -> bool:
    """Whether a table without a place in the catalog has a namespace: it is in a database that the script has attached."""
    from sqlglot import exp

    table = tree.find(exp.Table)
    return table is not None and bool(table.db)


def _typed(result: DuckDBPyRelation, names: Sequence[str], table: Table) -> pa.Table:
    """The rows of a query under these names, in the types of the columns of the table, as an INSERT of DuckDB converts them."""
    import duckdb

    kinds = {one.name: _type(str(one.field_type)) for one in table.schema().fields}
    columns = [f"#{place}{f'::{kinds[name]}' if kinds.get(name) else ''} as {_quoted(name)}" for place, name in enumerate(names, 1)]
    try:
        return as_arrow(result.project(", ".join(columns)).to_arrow_table())
    except (duckdb.ConversionException, duckdb.OutOfRangeException) as error:
        reason = str(error).partition("\n")[0]
        raise PacelineError(f"The rows do not have the types of the table {'.'.join(table.name())}: {reason}.") from None


def _spelled(names: Sequence[str], table: Table) -> list[str]:
    """The names of columns as the table has them: SQL takes `ID` and `id` for one."""
    known = table.schema().as_arrow().names
    lower = {name.lower(): name for name in known}
    return [name if name in known else lower.get(name.lower(), name) for name in names]


def overwrite(table: Table, rows: pa.Table) -> None:
    """Replace all rows of a table, in one change."""
    from pyiceberg.expressions import AlwaysTrue

    with table.transaction() as change:
        writes.replace(change, writes.aligned(rows, table), AlwaysTrue())


def quoted(name: str) -> str:
    """The name of a table for a statement of DuckDB, in the schema with the name of its namespace."""
    return ".".join(f'"{part}"' for part in name.rsplit(".", 1))


def _nested(name: str) -> str:
    """The name of a table in a schema for each part of its namespace, as `sales.eu.orders` means it."""
    return ".".join(f'"{part}"' for part in name.split("."))


def _place(tree: Any, name: str) -> str:
    """The name under which a statement changes a table: that in nested schemas, unless it has the namespace in quotes."""
    from sqlglot import exp

    return _nested(name) if any(len(one.parts) > 2 and "." not in one.db for one in tree.find_all(exp.Table)) else quoted(name)


def _link(database: DuckDBPyConnection, name: str, place: str = "") -> None:
    """Make a table or view of a nested namespace readable as `"sales.eu".orders` and as `sales.eu.orders`."""
    nested, flat = _nested(name), quoted(name)
    if nested == flat:
        return
    _schemas(database, name)
    here, there = (flat, nested) if place == nested else (nested, flat)
    database.execute(f"create or replace view {here} as from {there}")


def _schemas(database: DuckDBPyConnection, name: str) -> None:
    *namespace, _ = name.split(".")
    for depth in range(len(namespace)):
        database.execute(f"create schema if not exists {_nested('.'.join(namespace[: depth + 1]))}")
    database.execute(f'create schema if not exists "{".".join(namespace)}"')


def show(database: DuckDBPyConnection, name: str, table: Table, wanted: set[str] | None, *, copy: str = "") -> None:
    """Make the rows of an Iceberg table readable under its name, as a view, or as a copy in the place `copy`.

    `wanted` are the columns that matter, in lower case.
    """
    _schemas(database, name)
    source = _files(table)
    if source is None:
        schema = table.schema()
        columns = [one.name for one in schema.fields if wanted is None or one.name.lower() in wanted]
        source = _arrow_name(name)
        database.register(source, table.scan(selected_fields=tuple(columns or schema.column_names[:1])).to_arrow())
    database.execute(f"create table {copy} as from {source}" if copy else f"create view {quoted(name)} as from {source}")


def hide(database: DuckDBPyConnection, name: str, *, copy: str = "") -> None:
    """Undo what made a table or view readable, and release the rows that it holds in memory."""
    for place in dict.fromkeys((quoted(name), _nested(name))):
        database.execute(f"drop {'table' if place == copy else 'view'} if exists {place}")
    database.unregister(_arrow_name(name))


def _arrow_name(name: str) -> str:
    return f"paceline_arrow_{hash(name) & 0xFFFFFFFF:x}"


def show_view(database: DuckDBPyConnection, view: ViewQuery) -> None:
    """Make a view of the catalog readable under its name. PacelineError if DuckDB refuses its query."""
    import duckdb

    _schemas(database, view.name)
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
    database.execute(f'create or replace view "{name}" as select {columns} from "{source}"')


def _files(table: Table) -> str | None:
    """What reads the files of a table by field ID; None if DuckDB cannot read them as they are."""
    types = [_type(str(field.field_type)) for field in table.schema().fields]
    if None in types or _NAME_MAPPING in table.properties or any(one.initial_default is not None for one in table.schema().fields):
        return None
    tasks = list(table.scan().plan_files())
    if not tasks:
        columns = [f"null::{kind} as {_quoted(field.name)}" for field, kind in zip(table.schema().fields, types, strict=True)]
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


def _used(tree: Any, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values of the parameters in a statement, or in a part of one; DuckDB refuses others."""
    return {name: parameters[name] for name in sql.parameters_of(tree) & parameters.keys()} or None
