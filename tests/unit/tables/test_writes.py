"""Writes that a repeated run replaces, on real Iceberg tables."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from paceline.authoring.asset import Asset
from paceline.exceptions import PacelineError
from paceline.tables import append_once, merge, overwrite_by_logical_date
from paceline.tables.replaced import SOURCE
from tests.unit.tables.conftest import InTask

DAY = datetime(2026, 1, 2, tzinfo=UTC)


def rows(catalog: SqlCatalog, name: str, *columns: str) -> list[dict[str, Any]]:
    found = catalog.load_table(name).scan(selected_fields=columns or ("*",)).to_arrow().to_pylist()
    return sorted(found, key=lambda row: [str(value) for value in row.values()])


def of_day(day: date, *amounts: int) -> pa.Table:
    return pa.table({"day": [day] * len(amounts), "amount": list(amounts)})


def test_a_run_replaces_the_rows_of_its_date_and_no_others(catalog: SqlCatalog, in_task: InTask) -> None:
    for run in (1, 2, 3):
        with in_task(DAY + timedelta(days=run)):
            overwrite_by_logical_date("sales.days", of_day(date(2026, 1, 2 + run), run, run), "day")
    with in_task(DAY + timedelta(days=2)):
        overwrite_by_logical_date(Asset.table("sales.days"), of_day(date(2026, 1, 4), 20))

    assert [row["amount"] for row in rows(catalog, "sales.days", "day", "amount")] == [1, 1, 20, 3, 3]
    assert [str(field.transform) for field in catalog.load_table("sales.days").spec().fields] == ["identity"]


def test_an_empty_interval_replaces_the_partition_of_the_logical_date(catalog: SqlCatalog, in_task: InTask) -> None:
    at = pa.array([datetime(2026, 1, 2, 5, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    for amount in (1, 2):
        with in_task(DAY + timedelta(hours=3), hours=0):
            overwrite_by_logical_date("sales.times", pa.table({"at": at, "amount": [amount]}), "at")

    assert [row["amount"] for row in rows(catalog, "sales.times")] == [2]
    assert [str(field.transform) for field in catalog.load_table("sales.times").spec().fields] == ["day"]


def test_a_row_outside_of_the_interval_is_refused(catalog: SqlCatalog, in_task: InTask) -> None:
    for wrong in (date(2026, 1, 3), None):
        with in_task(DAY), pytest.raises(PacelineError, match="outside of the interval 2026-01-02 to 2026-01-03"):
            overwrite_by_logical_date("sales.days", pa.table({"day": pa.array([wrong], pa.date32()), "amount": [1]}), "day")


def test_a_date_is_one_of_the_time_zone_of_the_dag(catalog: SqlCatalog, in_task: InTask) -> None:
    with in_task(datetime(2026, 1, 1, 23, tzinfo=UTC)) as values:
        values["dag"].timezone = "Europe/Berlin"
        overwrite_by_logical_date("sales.days", of_day(date(2026, 1, 2), 1), "day")
        values["dag"].timezone = "UTC"
        with pytest.raises(PacelineError, match="not one of whole days"):
            overwrite_by_logical_date("sales.days", of_day(date(2026, 1, 2), 1), "day")


def test_a_task_instance_replaces_what_it_appended_and_nothing_else(catalog: SqlCatalog, in_task: InTask) -> None:
    frame = pd.DataFrame({"id": [1, 2], "at": pd.to_datetime(["2026-01-01", "2026-01-02"])})
    catalog.create_table("sales.log", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]))
    catalog.load_table("sales.log").append(pa.table({"id": [0], "at": pa.array([None], pa.timestamp("us"))}))
    for run, ids in (("a", [1, 2]), ("b", [3]), ("a", [1, 2]), ("a", [5])):
        with in_task(run_id=run):
            append_once("sales.log", frame[frame.id.isin(ids)] if ids != [5] and ids != [3] else pl.DataFrame({"id": ids}))
    with in_task(run_id="b", map_index=1):
        append_once("sales.log", pl.LazyFrame({"id": [7]}))

    assert [row["id"] for row in rows(catalog, "sales.log", "id")] == [0, 3, 5, 7]
    assert len({row[SOURCE] for row in rows(catalog, "sales.log", SOURCE)}) == 4


def test_a_try_may_append_several_times_and_the_next_one_replaces_all(catalog: SqlCatalog, in_task: InTask) -> None:
    for numbers in ([1, 2, 3], [4, 5]):
        with in_task():
            for number in numbers:
                append_once("sales.log", pa.table({"n": [number]}))
        assert sorted(row["n"] for row in rows(catalog, "sales.log", "n")) == numbers


def test_a_merge_equals_that_of_duckdb(catalog: SqlCatalog, in_task: InTask) -> None:
    import random

    chance = random.Random(7)
    ours = duckdb.connect()
    ours.execute("create table t (a int, b varchar, v int)")
    for batch in range(6):
        keys = chance.sample([(a, b) for a in range(6) for b in "xyz"], chance.randint(1, 9))
        frame = pa.table({
            "a": pa.array([a for a, _ in keys], pa.int32()), "b": [b for _, b in keys],
            "v": pa.array([chance.randint(0, 3) for _ in keys], pa.int32()),
        })  # fmt: skip
        with in_task(run_id=str(batch)):
            merge("sales.merged", frame, ["a", "b"])
        ours.execute(
            "merge into t using frame s on t.a = s.a and t.b = s.b when matched then update set v = s.v"
            " when not matched then insert"
        )
        expected = ours.sql("select a, b, v from t order by a::varchar, b").fetchall()
        assert [tuple(row.values()) for row in rows(catalog, "sales.merged")] == expected


def test_a_merge_refuses_a_key_twice_and_an_unknown_column(catalog: SqlCatalog, in_task: InTask) -> None:
    with in_task():
        with pytest.raises(PacelineError, match=r"have a key \(id\) twice"):
            merge("sales.m", pa.table({"id": [1, 1]}), "id")
        merge("sales.m", pa.table({"id": [1]}), "id")
        with pytest.raises(PacelineError, match="has no column 'ad'"):
            merge("sales.m", pa.table({"id": [1], "ad": [1]}), "id")
        with pytest.raises(PacelineError, match="null in the key 'id'"):
            merge("sales.m", pa.table({"id": [2, None]}), "id")
        with pytest.raises(PacelineError, match="no column 'ad' to merge by"):
            merge("sales.m", pa.table({"id": [1]}), "ad")


def test_a_merge_keeps_the_columns_that_its_rows_do_not_have(catalog: SqlCatalog, in_task: InTask) -> None:
    with in_task():
        merge("sales.m", pa.table({"a": [1, 2], "b": ["x", "y"], "tags": [["t"], None], "n": [10, 20]}), ["a", "b"])
        merge("sales.m", pa.table({"b": ["y", "z", "x"], "a": [2, 3, 1], "n": [21, 31, 11]}), ["a", "b"])

    found = rows(catalog, "sales.m", "a", "b", "n", "tags")
    assert sorted(tuple(row.values()) for row in found) == [(1, "x", ["t"], 11), (2, "y", None, 21), (3, "z", None, 31)]


def test_what_is_no_table_and_no_frame_is_refused(in_task: InTask) -> None:
    with in_task():
        with pytest.raises(PacelineError, match="is not a table"):
            append_once("orders", pa.table({"id": [1]}))
        with pytest.raises(PacelineError, match="not int"):
            append_once("sales.orders", 7)


@pytest.mark.parametrize(
    ("frame", "kind", "value"),
    [
        (pd.DataFrame({"a": pd.to_datetime(["2026-01-02 01:02:03.123456789"])}), "timestamp",
         datetime(2026, 1, 2, 1, 2, 3, 123456)),
        (pd.DataFrame({"a": pd.to_datetime(["2026-01-02 01:00"]).tz_localize("Europe/Berlin")}), "timestamptz",
         datetime(2026, 1, 2, tzinfo=UTC)),
        (pa.table({"a": pa.array([{"t": datetime(2026, 1, 2)}], pa.struct([("t", pa.timestamp("ns"))]))}),
         "struct<3: t: optional timestamp>", {"t": datetime(2026, 1, 2)}),
        (pl.DataFrame({"a": ["x"]}, schema={"a": pl.Categorical}), "string", "x"),
        (pl.DataFrame({"a": ["x"]}, schema={"a": pl.Enum(["x", "y"])}), "string", "x"),
        (pl.DataFrame({"a": [time(1, 2)]}), "time", time(1, 2)),
        (pa.table({"a": pa.array([date(2026, 1, 2)], pa.date64())}), "date", date(2026, 1, 2)),
    ],
)  # fmt: skip
def test_values_get_the_types_that_iceberg_has(catalog: SqlCatalog, in_task: InTask, frame: Any, kind: str, value: Any) -> None:
    for run_id in ("r1", "r2"):  # creates the table, and appends to it
        with in_task(run_id=run_id):
            append_once("sales.typed", frame)

    table = catalog.load_table("sales.typed")
    assert str(table.schema().find_field("a").field_type) == kind
    assert table.scan().to_arrow()["a"].to_pylist() == [value, value]


def test_a_column_without_null_stays_one(catalog: SqlCatalog, in_task: InTask) -> None:
    with in_task():
        append_once("sales.typed", pa.table({"a": [1]}, schema=pa.schema([pa.field("a", pa.int64(), nullable=False)])))

    assert catalog.load_table("sales.typed").schema().find_field("a").required
