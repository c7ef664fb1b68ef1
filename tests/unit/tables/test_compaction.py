"""Compaction on real Iceberg tables: fewer files, and the same rows."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import DayTransform, TruncateTransform
from pyiceberg.types import LongType

from paceline.exceptions import PacelineError
from paceline.tables import compact, tables_to_compact
from paceline.tables.compaction import FEWEST
from tests.unit.tables.conftest import InTask

MIB = 1 << 20
SCHEMA = pa.schema([("id", pa.int64()), ("who", pa.string()), ("day", pa.date32())])


def rows(*ids: int, who: str | None = "a", day: date | None = date(2026, 1, 2)) -> pa.Table:
    return pa.table({"id": list(ids), "who": [who] * len(ids), "day": [day] * len(ids)}, schema=SCHEMA)


def table_of(catalog: SqlCatalog, files: int, name: str = "sales.t", **properties: str) -> Table:
    """A table with this number of small files of two rows each."""
    table = catalog.create_table(name, SCHEMA, properties=properties)
    for number in range(files):
        table.append(rows(2 * number, 2 * number + 1))
    return table


def files(table: Table) -> int:
    return len(list(table.refresh().scan().plan_files()))


def content(table: Table) -> list[dict[str, Any]]:
    return sorted(table.refresh().scan().to_arrow().to_pylist(), key=lambda row: int(row["id"]))


def test_small_files_become_one_with_the_same_rows_and_a_second_pass_does_nothing(catalog: SqlCatalog, in_task: InTask) -> None:
    table = table_of(catalog, 6)
    before = content(table)
    with in_task():
        assert tables_to_compact() == ["sales.t"]
        assert compact("sales.t") == {"table": "sales.t", "files": 6, "into": 1, "left": 0}
        assert (files(table), content(table)) == (1, before)
        snapshot = table.current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        assert snapshot.summary.operation is Operation.REPLACE
        counted = ("total-records", "total-data-files", "added-records", "deleted-records")
        assert [snapshot.summary[key] for key in counted] == ["12", "1", "12", "12"]
        assert tables_to_compact() == []
        assert compact("sales.t") == {"table": "sales.t", "files": 0, "into": 0, "left": 0}
    assert table.refresh().current_snapshot() == snapshot
    assert [row["id"] for row in table.scan().to_arrow().to_pylist()] == list(range(12)), "in the order in which they were written"


def test_a_bounded_pass_leaves_the_rest_for_the_next(catalog: SqlCatalog, in_task: InTask) -> None:
    table = table_of(catalog, 13)
    before = content(table)
    passes = []
    with in_task():
        while (done := compact("sales.t", most_bytes=6 * MIB))["files"]:
            assert content(table) == before
            passes.append((done["files"], done["left"], files(table)))
    assert passes == [(6, 7, 8), (6, 2, 3)]


def test_a_pass_that_may_join_next_to_nothing_still_joins_two_files(catalog: SqlCatalog, in_task: InTask) -> None:
    table = table_of(catalog, FEWEST)
    with in_task():
        assert compact("sales.t", most_bytes=1)["files"] == 2
    assert files(table) == FEWEST - 1


def test_files_are_joined_within_their_partitions(catalog: SqlCatalog, in_task: InTask) -> None:
    table = catalog.create_table("sales.t", SCHEMA)
    with table.update_spec() as change:
        change.add_field("who", TruncateTransform(1), "letter")
        change.add_field("day", DayTransform(), "on")
        change.add_identity("id")
    for _ in range(FEWEST):
        table.append(rows(1, who="anna"))
        table.append(rows(2, who=None, day=None))
    table.append(rows(3, who="otto"))
    before = content(table)
    with in_task():
        assert compact("sales.t") == {"table": "sales.t", "files": 2 * FEWEST, "into": 2, "left": 0}
    assert content(table) == before
    found = {tuple(task.file.partition[n] for n in range(3)): task.file.record_count for task in table.scan().plan_files()}
    assert found == {("a", 20455, 1): FEWEST, (None, None, 2): FEWEST, ("o", 20455, 3): 1}
    assert table.scan("who == 'anna' and id == 1").to_arrow().num_rows == FEWEST


def test_files_of_an_older_schema_get_the_columns_of_the_table(catalog: SqlCatalog, in_task: InTask) -> None:
    table = table_of(catalog, FEWEST - 1)
    with table.update_schema() as change:
        change.rename_column("who", "whose")
        change.add_column("amount", LongType())
        change.delete_column("day")
    table.append(pa.table({"id": [99], "whose": ["z"], "amount": [7]}))
    before = content(table)
    with in_task():
        assert compact("sales.t")["into"] == 1
    assert content(table) == before
    assert before[-1] == {"id": 99, "whose": "z", "amount": 7}


def test_files_of_an_older_partitioning_stay(catalog: SqlCatalog, in_task: InTask) -> None:
    table = table_of(catalog, 6)
    with table.update_spec() as change:
        change.add_identity("who")
    with in_task():
        assert compact("sales.t")["files"] == 0
        for number in range(FEWEST):
            table.append(rows(100 + number))
        assert compact("sales.t")["files"] == FEWEST
    assert files(table) == 7


def test_large_files_stay_and_files_are_joined_up_to_the_size_of_the_table(catalog: SqlCatalog, in_task: InTask) -> None:
    table = table_of(catalog, 7)
    size = next(iter(table.scan().plan_files())).file.file_size_in_bytes
    for properties, expected in (
        ({"write.target-file-size-bytes": str(size)}, (0, 0)),
        ({"write.target-file-size-bytes": str(size * 2 + 100)}, (6, 3)),
    ):
        with table.transaction() as change:
            change.set_properties(properties)
        with in_task():
            done = compact("sales.t")
        assert (done["files"], done["into"]) == expected


@pytest.mark.parametrize("properties", [{"gc.enabled": "false"}, {"write.format.default": "orc"}], ids=str)
def test_a_table_whose_properties_speak_against_it_is_left_alone(
    catalog: SqlCatalog, in_task: InTask, properties: dict[str, str]
) -> None:
    table = table_of(catalog, 6)
    with table.transaction() as change:
        change.set_properties(properties)
    with in_task():
        assert tables_to_compact() == []
        assert compact("sales.t")["files"] == 0


def test_files_without_the_rows_that_the_table_counts_are_not_joined(catalog: SqlCatalog, in_task: InTask) -> None:
    table = table_of(catalog, 6)
    damaged = next(iter(table.scan().plan_files())).file.file_path
    pq.write_table(pq.read_table(damaged.removeprefix("file://")).slice(1), damaged.removeprefix("file://"))
    snapshot = table.current_snapshot()
    with in_task(), pytest.raises(PacelineError, match=r"6 files of sales\.t have 11 rows, and the table counts 12"):
        compact("sales.t")
    assert table.refresh().current_snapshot() == snapshot


def test_the_tables_with_the_most_small_files_come_first(catalog: SqlCatalog, in_task: InTask) -> None:
    catalog.create_namespace("other")
    for name, number in (("sales.few", 5), ("sales.many", 9), ("other.some", 7), ("sales.none", 4)):
        table_of(catalog, number, name)
    catalog.create_table("sales.empty", SCHEMA)
    with in_task():
        assert tables_to_compact() == ["sales.many", "other.some", "sales.few"]
        assert tables_to_compact(most_tables=1) == ["sales.many"]
        assert tables_to_compact(["other", "nowhere"]) == ["other.some"]
        assert tables_to_compact(most_bytes=6 * MIB)[0] == "sales.many"


@pytest.mark.parametrize("version", ["1", "2"])
def test_values_of_all_types_stay_what_they_are(catalog: SqlCatalog, in_task: InTask, version: str) -> None:
    struct = pa.struct([("a b", pa.int32()), ("deep", pa.list_(pa.struct([("x", pa.float32())])))])
    schema = pa.schema([
        ("id", pa.int64()), ("flag", pa.bool_()), ("ratio", pa.float64()), ("price", pa.decimal128(20, 4)), ("raw", pa.binary()),
        ("four", pa.binary(4)), ("uid", pa.uuid()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
        ("clock", pa.time64("us")), ("list", pa.list_(pa.string())), ("map", pa.map_(pa.string(), pa.int64())), ("struct", struct),
    ])  # fmt: skip
    full = {
        "flag": True, "ratio": -0.5, "price": Decimal("-12.3400"), "raw": b"\0\xff", "four": b"abcd",
        "uid": UUID(int=7).bytes, "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "local": datetime(2026, 1, 2, 3, 4, 5, 6),
        "clock": time(1, 2, 3, 4), "list": ["", None, "ü"], "map": [("k", 1), ("", None)],
        "struct": {"a b": None, "deep": [{"x": 1.5}, None, {"x": None}]},
    }  # fmt: skip
    table = catalog.create_table("sales.t", schema, properties={"format-version": version})
    for number in range(FEWEST):
        empty = number % 2
        values = {"list": [], "map": [], "struct": None} if empty else full
        table.append(pa.Table.from_pylist([{"id": number, **values}], schema=schema))
    before = content(table)
    with in_task():
        assert compact("sales.t")["into"] == 1
    assert (files(table), content(table)) == (1, before)
    assert before[0] == {"id": 0, **full, "uid": UUID(int=7)}
