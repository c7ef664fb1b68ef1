"""A DataFrame that a task returns is the same for every reader of its Parquet files: values of each type, and their edges."""

import datetime as dt
import os
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest
from pyarrow import parquet

from paceline.authoring.frames import DataFrameReference
from paceline.operators import PythonOperator
from scheduler.settings import Paths, Settings
from workers.spark import conf, frames, java
from workers.spark.sessions import session, session_pool

pytestmark = [pytest.mark.spark, pytest.mark.long]

UTC = dt.UTC
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
FIRST = dt.datetime(1, 1, 1)
JULIAN = dt.datetime(1582, 10, 4, 12)
LONG = "x" * 100_000
MOST = Decimal("9" * 38)
DAY = dt.timedelta(days=1)

#: By column: its values in SQL, and as Python has them. None is null.
COLUMNS: dict[str, tuple[list[str], list[Any]]] = {
    "byte": (["-128Y", "127Y"], [-128, 127]),
    "short": (["-32768S", "32767S"], [-32768, 32767]),
    "int": (["-2147483648", "2147483647"], [-(2**31), 2**31 - 1]),
    "int_null": (["2147483647", "null"], [2**31 - 1, None]),
    "long": (["-9223372036854775808L", "9223372036854775807L"], [-(2**63), 2**63 - 1]),
    "long_null": (["9223372036854775807L", "null"], [2**63 - 1, None]),
    "float": (["float('-Infinity')", "1.5F"], [float("-inf"), 1.5]),
    "double": (["1.7976931348623157E308D", "4.9E-324D"], [sys.float_info.max, 5e-324]),
    "nan": (["double('NaN')", "double('NaN')"], [float("nan"), float("nan")]),
    "negative_zero": (["-0.0D", "0.0D"], [0.0, 0.0]),
    "bool": (["true", "false"], [True, False]),
    "bool_null": (["true", "null"], [True, None]),
    "decimal_38": ([f"cast('{MOST}' as decimal(38,0))", f"cast('-{MOST}' as decimal(38,0))"], [MOST, MOST.copy_negate()]),
    "decimal_38_18": (["cast(0.000000000000000001 as decimal(38,18))", "null"], [Decimal("0.000000000000000001"), None]),
    "decimal_18": (["cast('9999999999999999.99' as decimal(18,2))", "null"], [Decimal("9999999999999999.99"), None]),
    "decimal_9": (["cast(-9999999.99 as decimal(9,2))", "cast(0 as decimal(9,2))"], [Decimal("-9999999.99"), Decimal("0.00")]),
    "text": (["''", "null"], ["", None]),
    "text_long": (["repeat('x', 100000)", "'a'"], [LONG, "a"]),
    "text_unicode": (["'\u00e4\u4e2d\U0001f600'", "'e\u0301'"], ["\u00e4\u4e2d\U0001f600", "e\u0301"]),
    "text_control": (["'a\\nb\\tc'", "char(0)"], ["a\nb\tc", "\0"]),
    "binary": (["X'00FF'", "X''"], [b"\x00\xff", b""]),
    "binary_null": (["X'80'", "null"], [b"\x80", None]),
    "date": (["date'0001-01-01'", "date'9999-12-31'"], [FIRST.date(), LAST.date()]),
    "date_1582": (["date'1582-10-04'", "date'1582-10-15'"], [dt.date(1582, 10, 4), dt.date(1582, 10, 15)]),
    "date_null": (["date'1969-12-31'", "null"], [dt.date(1969, 12, 31), None]),
    "time": (["timestamp'9999-12-31 23:59:59.999999'", "timestamp'0001-01-01 00:00:00'"],
             [LAST.replace(tzinfo=UTC), FIRST.replace(tzinfo=UTC)]),
    "time_1582": (["timestamp'1582-10-04 12:00:00'", "timestamp'1677-09-21 00:12:43'"],
                  [JULIAN.replace(tzinfo=UTC), dt.datetime(1677, 9, 21, 0, 12, 43, tzinfo=UTC)]),
    "time_2262": (["timestamp'2262-04-11 23:47:16.854776'", "timestamp'1969-12-31 23:59:59.999999'"],
                  [dt.datetime(2262, 4, 11, 23, 47, 16, 854776, tzinfo=UTC),
                   dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]),
    "time_dst": (["timestamp'2026-10-25 02:30:00+02:00'", "timestamp'2026-10-25 02:30:00+01:00'"],
                 [dt.datetime(2026, 10, 25, 0, 30, tzinfo=UTC), dt.datetime(2026, 10, 25, 1, 30, tzinfo=UTC)]),
    "time_null": (["timestamp'9999-01-01 00:00:00'", "null"], [dt.datetime(9999, 1, 1, tzinfo=UTC), None]),
    "ntz": (["timestamp_ntz'9999-12-31 23:59:59.999999'", "timestamp_ntz'0001-01-01 00:00:00'"], [LAST, FIRST]),
    "ntz_gap": (["timestamp_ntz'2026-03-29 02:30:00'", "null"], [dt.datetime(2026, 3, 29, 2, 30), None]),
    "array": (["array(1, null, 3)", "array()"], [[1, None, 3], []]),
    "array_null": (["array('a')", "null"], [["a"], None]),
    "array_time": (["array(timestamp'9999-12-31 23:59:59.999999')", "array(timestamp'0001-01-01 00:00:00')"],
                   [[LAST.replace(tzinfo=UTC)], [FIRST.replace(tzinfo=UTC)]]),
    "map": (["map('a', 1, 'b', null)", "map()"], [{"a": 1, "b": None}, {}]),
    "struct": (["named_struct('x', 1, 't', date'0001-01-01')", "null"], [{"x": 1, "t": FIRST.date()}, None]),
    "struct_time": (["named_struct('t', timestamp'9999-12-31 23:59:59.999999')", "named_struct('t', null)"],
                    [{"t": LAST.replace(tzinfo=UTC)}, {"t": None}]),
    "deep": (["array(map('k', named_struct('a', array(1L))))", "null"], [[{"k": {"a": [1]}}], None]),
    "nulls": (["cast(null as string)", "null"], [None, None]),
    "array_long": (["array(9223372036854775807L, null)", "array(1L)"], [[2**63 - 1, None], [1]]),
}  # fmt: skip
#: Only the reference's own to_pandas restores these types: Parquet has none for them.
INTERVALS: dict[str, tuple[list[str], list[Any]]] = {
    "days": (
        ["interval '365000' day", "interval '-0 00:00:00.000001' day to second"],
        [365_000 * DAY, -dt.timedelta(microseconds=1)],
    ),
    "days_null": (
        ["interval '200000 00:00:00.000001' day to second", "null"],
        [200_000 * DAY + dt.timedelta(microseconds=1), None],
    ),
    "months": (["interval '178956970-7' year to month", "interval '-1' month"], [2**31 - 1, -1]),
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = Settings(paths=Paths(home=tmp_path_factory.mktemp("home")))
    one = session_pool.start(conf.merged(settings, {}), {}, settings.spark, java.archive_options(settings))
    with session.opened(one, {}, name="types") as opened:
        yield opened
    session_pool.end(one)


def made(spark: Any, columns: dict[str, tuple[list[str], list[Any]]], *, rows: int = 2) -> Any:
    """Two rows, or none, in their order."""
    parts = [f"{sql[0]} as {name}" for name, (sql, _) in columns.items()]
    more = [f"{sql[1]} as {name}" for name, (sql, _) in columns.items()]
    both = f"select 0 as i, {', '.join(parts)} union all select 1 as i, {', '.join(more)}"
    return spark.sql(f"select * from ({both}) where i < {rows} order by i").coalesce(1)


def returned(frame: Any, folder: Path) -> DataFrameReference:
    """The reference that stands for a DataFrame once its task has returned it."""
    ti = SimpleNamespace(
        dag_id="d", run_id="r", run_key=1, task_id="t", map_index=-1, try_number=1, external_executor_id="00000000-0000-0000-0000-1"
    )
    found = frames.stored(frame, PythonOperator(task_id="t", python_callable=print), ti, Settings(paths=Paths(home=folder)))
    assert isinstance(found, DataFrameReference)
    return found


@pytest.fixture(scope="module")
def reference(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> DataFrameReference:
    return returned(made(spark, COLUMNS), tmp_path_factory.mktemp("data"))


def with_pandas(reference: DataFrameReference) -> dict[str, list[Any]]:
    frame = reference.to_pandas()
    return {name: frame[name].tolist() for name in frame.columns}


def with_arrow(reference: DataFrameReference) -> dict[str, list[Any]]:
    return dict(parquet.read_table(reference.path).to_pydict())


def with_polars(reference: DataFrameReference) -> dict[str, list[Any]]:
    return dict(pl.read_parquet(f"{reference.path}/*.parquet").to_dict(as_series=False))


def with_duckdb(reference: DataFrameReference) -> dict[str, list[Any]]:
    with duckdb.connect() as connection:
        connection.sql("set timezone = 'UTC'")
        found = connection.sql(f"select * from '{reference.path}/*.parquet' order by i")
        return dict(zip(found.columns, map(list, zip(*found.fetchall(), strict=True)), strict=True))


def plain(value: Any) -> Any:
    """A value of any reader as Python has it: lists for arrays, dicts for maps and structs, None for null, datetimes in UTC."""
    if value is None or value is pd.NaT or value is pd.NA:
        return None
    if hasattr(value, "tolist") and not isinstance(value, bytes):
        value = value.tolist()
    if isinstance(value, list | tuple):
        if value and all(isinstance(one, tuple) for one in value):
            return {key: plain(one) for key, one in value}
        if value and all(isinstance(one, dict) and set(one) == {"key", "value"} for one in value):
            return {one["key"]: plain(one["value"]) for one in value}
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, pd.Timestamp | pd.Timedelta):
        value = value.to_pydatetime() if isinstance(value, pd.Timestamp) else value.to_pytimedelta()
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, float) and value != value:
        return "NaN"
    return value


@pytest.mark.parametrize("read", [with_pandas, with_arrow, with_polars, with_duckdb])
def test_every_reader_finds_the_values_that_spark_wrote(
    reference: DataFrameReference, read: Callable[[DataFrameReference], dict[str, list[Any]]]
) -> None:
    found = read(reference)

    different = {}
    for name, (_, expected) in COLUMNS.items():
        got, wanted = [plain(one) for one in found[name]], [plain(one) for one in expected]
        if read is with_pandas and any(one is None for one in wanted):
            # pandas has one sign for null and not a number.
            got = [None if one == "NaN" else one for one in got]
        if name == "map" and got[1] == []:
            got[1] = {}  # an empty list of pairs
        if got != wanted:
            different[name] = (got, wanted)
    assert different == {}


def test_spark_reads_back_its_own_values(spark: Any, reference: DataFrameReference) -> None:
    def rows(frame: Any) -> list[Any]:
        return [tuple(row) for row in frame.selectExpr(*(f"cast({name} as string)" for name in frame.columns)).collect()]

    assert rows(reference.to_spark(spark).orderBy("i")) == rows(made(spark, COLUMNS))
    assert reference.to_spark(spark).dtypes == made(spark, COLUMNS).dtypes


def test_intervals_are_intervals_in_pandas_and_spark(spark: Any, tmp_path: Path) -> None:
    reference = returned(made(spark, INTERVALS), tmp_path)

    frame = reference.to_pandas()

    assert {name: [plain(one) for one in frame[name].tolist()] for name in INTERVALS} == {
        n: want for n, (_, want) in INTERVALS.items()
    }
    assert reference.to_spark(spark).dtypes == made(spark, INTERVALS).dtypes


def test_an_empty_dataframe_keeps_its_columns_and_types(spark: Any, tmp_path: Path) -> None:
    reference = returned(made(spark, COLUMNS, rows=0), tmp_path)

    assert reference.rows == 0
    assert reference.to_spark(spark).dtypes == made(spark, COLUMNS).dtypes
    assert list(reference.to_pandas().columns) == ["i", *COLUMNS]
    assert len(reference.to_pandas(columns=["time", "map"])) == 0
    assert pl.read_parquet(f"{reference.path}/*.parquet").shape == (0, len(COLUMNS) + 1)


def test_only_the_requested_columns_are_read_in_their_order(reference: DataFrameReference) -> None:
    assert list(reference.to_pandas(columns=["time", "int"]).columns) == ["time", "int"]


def test_a_dataframe_with_two_columns_of_one_name_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="COLUMN_ALREADY_EXISTS"):
        returned(spark.sql("select 1 as x, 2 as x"), tmp_path)
