"""What computes the checks of a suite, and moves the rows that break one: Spark for its DataFrames, DuckDB for tables and all
other frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from paceline.authoring.asset import Asset
from paceline.exceptions import PacelineError
from paceline.quality import report
from paceline.quality.report import Check, Report, Result
from paceline.tables import writes
from paceline.tables.conversion import as_arrow
from paceline.tables.spark_writes import SparkWriter, for_spark

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: The index of a suite, the number of a check in it, what is checked, the check.
Numbered = tuple[int, int, Any, Check]
Key = tuple[int, int]
SAMPLE_ROWS = 5
#: Spark's names of types, by those of DuckDB.
_NAMES = {
    "integer": "int", "varchar": "string", "blob": "binary", "timestamp": "timestamp_ntz", "timestamp with time zone": "timestamp",
}  # fmt: skip


class Backend(Protocol):
    """Computes checks."""

    def types(self, place: int) -> dict[str, str]:
        """The type of each column, with Spark's names."""

    def frame(self, place: int) -> Any:
        """What the suite with this index checks."""

    def count(self, checks: Sequence[Numbered]) -> tuple[dict[Key, Any], dict[Key, str]]:
        """The number of broken rows or the measure of each check, and the errors of those that cannot be computed."""

    def sample(self, checks: Sequence[Numbered]) -> dict[Key, list[Any]]:
        """Some of the rows that break each check."""


@contextmanager
def opened(suites: Sequence[Any], values: Any) -> Iterator[dict[int, Backend]]:
    """The backend of each suite, by its index. In a PySpark task, Spark checks tables too."""
    spark: Any = None if values is None else values.get("spark")
    on_spark = {
        place: spark.table(for_spark(suite.frame)) if isinstance(suite.frame, str) else suite.frame
        for place, suite in enumerate(suites)
        if hasattr(suite.frame, "sparkSession") or (isinstance(suite.frame, str) and spark is not None)
    }
    with ExitStack() as stack:
        found: dict[int, Backend] = dict.fromkeys(on_spark, Spark(on_spark))
        others = {place: suite for place, suite in enumerate(suites) if place not in on_spark}
        if others:
            found |= dict.fromkeys(others, stack.enter_context(DuckDb.opened(others, values)))
        yield found


class Spark:
    """One job in the session of the DataFrames."""

    def __init__(self, frames: Mapping[int, Any]) -> None:
        self._frames = frames

    def types(self, place: int) -> dict[str, str]:
        return dict(self._frames[place].dtypes)

    def frame(self, place: int) -> Any:
        return self._frames[place]

    def count(self, checks: Sequence[Numbered]) -> tuple[dict[Key, Any], dict[Key, str]]:
        from paceline.quality import query

        return query.count([_with_target(one, one[2].sparkSession.table) for one in checks])

    def sample(self, checks: Sequence[Numbered]) -> dict[Key, list[Any]]:
        from paceline.quality import query

        return query.sample([_with_target(one, one[2].sparkSession.table) for one in checks])


def _with_target(one: Numbered, table: Any) -> Numbered:
    """The check with the DataFrame of its foreign key, if that is given as a table."""
    place, number, frame, check = one
    if isinstance(check.target, str | Asset):
        return place, number, frame, replace(check, target=table(for_spark(writes.name_of(check.target))))
    return one


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def broken(check: Check) -> tuple[str, list[Any]]:
    """The SQL condition of a row that breaks a check of single rows, and the values of its `?`."""
    word, *given = check.broken
    columns = [quoted(name) for name in check.needs]
    match word:
        case "null":
            text, values = " or ".join(f"{name} is null" for name in columns), []
        case "between":
            low, high = given
            parts = [f"{columns[0]} {sign} ?" for sign, bound in (("<", low), (">", high)) if bound is not None]
            text, values = " or ".join(parts), [bound for bound in (low, high) if bound is not None]
        case "values":
            text, values = f"{columns[0]} not in ({', '.join('?' for _ in given)})", given
        case "matches":
            text, values = f"not regexp_matches({columns[0]}, ?)", given
        case _:
            text, values = f"not ({given[0]})", []
    return f"({check.where}) and ({text})" if check.where else f"({text})", list(values)


class DuckDb:
    """Queries of DuckDB in the process of the task."""

    def __init__(self, database: DuckDBPyConnection, catalog: Any) -> None:
        self._database = database
        self._catalog = catalog
        self._views: dict[int, str] = {}
        #: Of the other side of foreign keys.
        self._targets: dict[Key, str] = {}

    @classmethod
    @contextmanager
    def opened(cls, suites: Mapping[int, Any], values: Any) -> Iterator[DuckDb]:
        """With a view of what each suite checks."""
        import duckdb

        with duckdb.connect() as database:
            database.execute("set TimeZone = 'UTC'")
            one = cls(database, writes.catalog_of(values) if values is not None and _has_tables(suites) else None)
            for place, suite in suites.items():
                one._views[place] = one.view(suite.frame, f"frame_{place}")
            yield one

    def view(self, frame: Any, name: str) -> str:
        """The quoted name under which a frame or a table can be queried."""
        from paceline.tables import duckdb_engine

        if not isinstance(frame, str | Asset):
            self._database.register(name, as_arrow(frame))
            return quoted(name)
        if self._catalog is None:
            raise PacelineError(f"The table {frame} can be checked only in a task, which has a catalog.")
        table = writes.name_of(frame)
        duckdb_engine.show(self._database, f"{name}.{table.replace('.', '_')}", self._catalog.load_table(table), None)
        return duckdb_engine.quoted(f"{name}.{table.replace('.', '_')}")

    def types(self, place: int) -> dict[str, str]:
        rows = self._database.execute(f"describe from {self._views[place]}").fetchall()
        return {str(row[0]): _NAMES.get(str(row[1]).lower(), str(row[1]).lower()) for row in rows}

    def frame(self, place: int) -> str:
        return self._views[place]

    def rows(self, text: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query as dicts."""
        cursor = self._database.execute(text, list(values))
        names = [one[0] for one in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arrow(self, text: str, values: Sequence[Any] = ()) -> Any:
        """The rows of a query as an Arrow table."""
        return self._database.sql(text, params=list(values)).to_arrow_table()

    def count(self, checks: Sequence[Numbered]) -> tuple[dict[Key, Any], dict[Key, str]]:
        import duckdb

        counted: dict[Key, Any] = {}
        impossible: dict[Key, str] = {}
        for view in dict.fromkeys(one[2] for one in checks):
            of_rows = [one for one in checks if one[2] == view and one[3].kind in {"row", "rows", "measure"}]
            try:
                counted |= self._one_pass(of_rows)
            except duckdb.Error:
                for one in of_rows:
                    try:
                        counted |= self._one_pass([one])
                    except duckdb.Error as error:
                        impossible[one[:2]] = f"DuckDB cannot check it: {str(error).partition(chr(10))[0]}"
        for place, number, view, check in checks:
            try:
                if check.kind == "unique":
                    text = f"select coalesce(sum(copies - 1), 0) as n from ({self._duplicates(view, check)})"
                    counted[place, number] = self.rows(text)[0]["n"]
                elif check.kind == "foreign_key":
                    text = f"select coalesce(sum(rows), 0) as n from ({self._orphans(view, check, (place, number))})"
                    counted[place, number] = self.rows(text)[0]["n"]
            except duckdb.Error as error:
                impossible[place, number] = f"DuckDB cannot check it: {str(error).partition(chr(10))[0]}"
        return counted, impossible

    def _one_pass(self, checks: Sequence[Numbered]) -> dict[Key, Any]:
        if not checks:
            return {}
        texts, values = list[str](), list[Any]()
        for _, _, _, check in checks:
            text, given = _value(check)
            texts.append(text)
            values += given
        cursor = self._database.execute(f"select {', '.join(texts)} from {checks[0][2]}", values)
        row = cursor.fetchone() or ()
        return {one[:2]: value for one, value in zip(checks, row, strict=True)}

    def sample(self, checks: Sequence[Numbered]) -> dict[Key, list[Any]]:
        found: dict[Key, list[Any]] = {}
        for place, number, view, check in checks:
            values: list[Any] = []
            if check.kind == "row":
                condition, values = broken(check)
                text = f"from {view} where {condition}"
            elif check.kind == "unique":
                text = self._duplicates(view, check)
            else:
                text = self._orphans(view, check, (place, number))
            rows = self.rows(f"select * from ({text}) limit {SAMPLE_ROWS}", values)
            found[place, number] = json.loads(json.dumps(rows, default=str))
        return found

    def _duplicates(self, view: str, check: Check) -> str:
        keys = ", ".join(map(quoted, check.needs))
        where = f" where {check.where}" if check.where else ""
        return f"select {keys}, count(*) as copies from {view}{where} group by {keys} having count(*) > 1"

    def _orphans(self, view: str, check: Check, key: Key) -> str:
        if key not in self._targets:
            self._targets[key] = self.view(check.target, f"target_{key[0]}_{key[1]}")
        target = self._targets[key]
        keys = [f"f.{quoted(name)}" for name in check.needs]
        equal = " and ".join(f"{mine} = t.{quoted(name)}" for mine, name in zip(keys, check.target_columns, strict=True))
        given = " and ".join([*(f"{name} is not null" for name in keys), *([f"({check.where})"] if check.where else [])])
        return (
            f"select {', '.join(keys)}, count(*) as rows from {view} f where {given}"
            f" and not exists (select 1 from {target} t where {equal}) group by {', '.join(keys)}"
        )


def _has_tables(suites: Mapping[int, Any]) -> bool:
    return any(
        isinstance(one, str | Asset) for suite in suites.values() for one in (suite.frame, *(c.target for c in suite.checks))
    )


def _value(check: Check) -> tuple[str, list[Any]]:
    """The aggregate of a check of single rows, of all rows, or that compares with earlier runs."""
    where = f" filter (where {check.where})" if check.where else ""
    if check.kind == "row":
        condition, values = broken(check)
        return f"count(*) filter (where {condition})", values
    if check.kind == "rows" or check.measure == "rows":
        return f"count(*){where}", []
    column = quoted(check.needs[0])
    if check.measure == "newest":
        return f"epoch(max({column}){where})", []
    return f"avg(({column} is null)::int){where}" if check.measure == "nulls" else f"avg({column}){where}", []


#: The column with the checks that a row breaks, one in a line.
BROKEN = "paceline_broken"


def split(suite: Any, table: str) -> Any:
    """Move the rows that break a check on single rows to `table`, and check the others. See Suite.quarantine."""
    values = report.context()
    if values is None:
        raise PacelineError("quarantine() works only in a task, because it writes a table.")
    checks = [each for each in suite.checks if each.kind == "row" and not each.warn]
    if not checks:
        raise PacelineError("quarantine() needs a check on single rows, such as not_null(), that is not a warning.")
    good, moved = (_with_spark if _is_spark(suite, values) else _with_duckdb)(suite, checks, table, values)
    if moved:
        promises = ", ".join(each.promise for each in checks)
        note = f"{moved:,} rows are in {table}"
        report.finish(Report((Result(frame=suite.name, promise=promises, status="warned", note=note),)), fail=False)
    rest = type(suite)(suite.frame if good is None else good, suite.name)
    rest.checks = suite.checks
    rest.check()
    return good


def _is_spark(suite: Any, values: Any) -> bool:
    return hasattr(suite.frame, "sparkSession") or (isinstance(suite.frame, str) and values.get("spark") is not None)


def _with_duckdb(suite: Any, checks: list[Check], table: str, values: Any) -> tuple[Any, int]:
    """The good rows as an Arrow table, or None if they are in the table that the suite checks; and how many rows were moved."""
    with DuckDb.opened({0: suite}, values) as duck:
        view = duck.frame(0)
        conditions = [broken(each) for each in checks]
        any_broken = " or ".join(f"coalesce(({text}), false)" for text, _ in conditions)
        bound = [value for _, given in conditions for value in given]
        # Of each row, the promises that it breaks.
        marks = ", ".join(f"case when {text} then ? end" for text, _ in conditions)
        marked = [value for each, (_, given) in zip(checks, conditions, strict=True) for value in (*given, each.promise)]
        bad = duck.arrow(f"select *, concat_ws(chr(10), {marks}) as {BROKEN} from {view} where {any_broken}", [*marked, *bound])
        is_table = isinstance(suite.frame, str)
        good = duck.arrow(f"from {view} where not ({any_broken})", bound) if bad.num_rows or not is_table else None
    catalog = writes.catalog_of(values)
    if bad.num_rows and catalog.table_exists(table):
        # The checked rows may have got columns since the first bad ones were moved.
        known = catalog.load_table(table)
        if not {*bad.column_names} <= {*known.schema().as_arrow().names}:
            with known.update_schema() as schema:
                schema.union_by_name(bad.schema)
    writes.append_once(table, bad)
    if is_table and bad.num_rows:
        from paceline.tables import duckdb_engine

        duckdb_engine.overwrite(catalog.load_table(suite.frame), good)
    return (None if is_table else good), bad.num_rows


def _with_spark(suite: Any, checks: list[Check], table: str, values: Any) -> tuple[Any, int]:
    """The good rows as a DataFrame, or None if they are in the table that the suite checks; and how many rows were moved."""
    from pyspark.sql import functions as F

    from paceline.quality import query

    is_table = isinstance(suite.frame, str)
    frame: Any = values["spark"].table(for_spark(suite.frame)) if is_table else suite.frame
    marks = [F.when(F.coalesce(query.broken(each), F.lit(False)), F.lit(each.promise)) for each in checks]
    marked = frame.withColumn(BROKEN, F.concat_ws("\n", *marks))
    bad = marked.where(F.col(BROKEN) != "")
    good = marked.where(F.col(BROKEN) == "").drop(BROKEN)
    moved = bad.count()
    if moved:
        # The checked rows may have got columns since the first bad ones were moved.
        SparkWriter(table, bad).widen()
    writes.append_once(table, bad)
    if is_table and moved:
        # A read of the table while it is overwritten is of the snapshot before.
        good.writeTo(for_spark(suite.frame)).overwrite(F.lit(True))
    return (None if is_table else good), moved
