"""The writes that a repeated run replaces keep the same promises for frames of Arrow and of Spark, on the tables of real tries."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.spark_tables import Task, jvm, lake, settings
from support.tables import Lake

from paceline.authoring import execution
from paceline.exceptions import PacelineError
from paceline.operators.sql import SQLExecuteQueryOperator
from paceline.quality import expect
from paceline.tables import append_once, merge, overwrite_by_logical_date
from paceline.tables.replaced import SOURCE
from paceline.tables.writes import create
from workers.spark.sessions.session_pool import WarmJvm

__all__ = ["jvm", "lake", "settings"]

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]
DAY = date(2026, 1, 2)

MOMENT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


class Try:
    """A running try, whose frames are those of one engine."""

    def __init__(self, lake: Lake, jvm: WarmJvm, engine: str, name: str = "d", run_id: str = "r1", day: date = DAY) -> None:
        self.task, self.engine = Task(lake, jvm, name), engine
        self.catalog = lake.catalog(self.task.token)
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        ti = SimpleNamespace(
            dag_id="shop", run_id=run_id, task_id="load", map_index=-1, catalog=self.catalog, now=lambda: None,
            xcom_push=lambda *_, **__: None, xcom_pull=lambda *_, default=None, **__: default,
        )  # fmt: skip
        self.context: dict[str, Any] = {
            "ti": ti, "dag": SimpleNamespace(timezone="UTC"), "logical_date": start, "data_interval_start": start,
            "data_interval_end": start + timedelta(days=1),
        }  # fmt: skip

    def writes(self, *steps: "Callable[[Try], None]") -> None:
        """Each step in the context of the task, and in its session."""

        def work(spark: Any) -> None:
            self.spark = spark
            self.context |= {"spark": spark} if self.engine == "spark" else {}
            with self.within():
                for step in steps:
                    step(self)

        self.task.run(work)

    def within(self) -> AbstractContextManager[dict[str, Any]]:
        return execution.current(self.context)

    def frame(self, schema: dict[str, pa.DataType], *rows: tuple[Any, ...]) -> Any:
        table = pa.table({name: pa.array([row[place] for row in rows], kind) for place, (name, kind) in enumerate(schema.items())})
        if self.engine == "arrow":
            return table
        kinds = {pa.int64(): "bigint", pa.string(): "string", pa.date32(): "date", MOMENT: "timestamp", LOCAL: "timestamp_ntz"}
        columns = [f"`{name.replace('`', '``')}` {kinds[kind]}" for name, kind in schema.items()]
        return self.spark.createDataFrame(list(rows), ", ".join(columns))

    def table(self, name: str) -> Any:
        """A table as a frame, which Spark has not read yet."""
        return self.spark.table(name) if self.engine == "spark" else self.catalog.load_table(name).scan().to_arrow()

    def seen(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        found = self.catalog.load_table(name).scan(selected_fields=columns or ("*",)).to_arrow().select(list(columns) or None)
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


ID = {"id": pa.int64()}
ROW = {"id": pa.int64(), "name": pa.string()}
OF_DAY = {"day": pa.date32(), "id": pa.int64()}


@pytest.fixture(params=["arrow", "spark"])
def begin(request: pytest.FixtureRequest, lake: Lake, jvm: WarmJvm) -> Callable[..., Try]:
    return lambda **options: Try(lake, jvm, request.param, **options)


def test_append_once_replaces_what_the_task_instance_has_appended_and_fills_columns_with_null(begin: Callable[..., Try]) -> None:
    first = begin()
    first.writes(
        lambda of: append_once("sales.log", of.frame(ROW, (1, "a"), (2, "b"))),
        lambda of: append_once("sales.log", of.frame(ID, (3,))),
    )
    assert first.seen("sales.log", "id", "name") == [(1, "a"), (2, "b"), (3, None)]
    first.task.ends()
    other = begin(name="e", run_id="r2")
    other.writes(lambda of: append_once("sales.log", of.frame(ID, (9,))))
    other.task.ends()
    again = begin(name="f")
    again.writes(lambda of: append_once("sales.log", of.frame(ROW, (7, "z"))))
    assert again.seen("sales.log", "id", "name") == [(7, "z"), (9, None)]


@pytest.mark.parametrize("write", [append_once, lambda table, frame: merge(table, frame, key="id")], ids=["append_once", "merge"])
def test_a_column_that_the_table_does_not_have_is_refused(begin: Callable[..., Try], write: Any) -> None:
    one = begin()
    one.writes(lambda of: write("sales.t", of.frame(ID, (1,))))
    with pytest.raises(PacelineError, match=r"The table .*has no column 'name'; add it first, or leave it out\. It has id"):
        one.writes(lambda of: write("sales.t", of.frame(ROW, (2, "x"))))
    assert one.seen("sales.t", "id") == [(1,)]


def test_an_interval_is_replaced_and_rows_outside_of_it_are_refused(begin: Callable[..., Try]) -> None:
    tomorrow = DAY + timedelta(days=1)
    for number, at in enumerate((DAY, tomorrow, DAY)):
        one = begin(name=f"d{number}", day=at)
        rows = ((at, number),)
        one.writes(lambda of, rows=rows: overwrite_by_logical_date("sales.days", of.frame(OF_DAY, *rows), "day"))
        one.task.ends()
    last = begin(name="last")
    assert last.seen("sales.days", "day", "id") == [(DAY, 2), (tomorrow, 1)]
    for wrong in (tomorrow, None):
        with pytest.raises(PacelineError, match=r"in 'day', outside of the interval 2026-01-02 to 2026-01-03"):
            last.writes(lambda of, wrong=wrong: overwrite_by_logical_date("sales.days", of.frame(OF_DAY, (DAY, 8), (wrong, 9))))
    assert last.seen("sales.days", "day", "id") == [(DAY, 2), (tomorrow, 1)]
    with pytest.raises(PacelineError, match="There is no column 'dya' in the table"):
        last.writes(lambda of: overwrite_by_logical_date("sales.days", of.frame(OF_DAY, (DAY, 8)), "dya"))


@pytest.mark.parametrize("kind", [MOMENT, LOCAL], ids=["zoned", "local"])
@pytest.mark.parametrize("partition", ["", "hour", "day", "month", "identity"])
def test_an_empty_interval_replaces_the_partition_of_the_logical_date(
    begin: Callable[..., Try], kind: pa.DataType, partition: str
) -> None:
    one, schema = begin(), {"At": kind, "id": pa.int64()}
    zone = None if kind == LOCAL else UTC
    logical = datetime(2026, 1, 2, 3, tzinfo=UTC)
    one.context |= {"logical_date": logical, "data_interval_start": logical, "data_interval_end": logical}
    moments = [datetime(2026, 1, day, hour, 30, tzinfo=zone) for day, hour in ((2, 3), (2, 4), (3, 3))]
    inside = moments[: {"hour": 1, "month": 3}.get(partition, 2)]
    if partition:
        table = create(one.catalog, "sales.times", pa.schema(list(schema.items())), [(partition, "At")])
        table.append(pa.table({"At": pa.array(moments, kind), "id": [1, 2, 3]}))
    if partition == "identity":
        with pytest.raises(PacelineError, match="no partitions of an hour, day, month or year"):
            one.writes(lambda of: overwrite_by_logical_date("sales.times", of.frame(schema, (inside[0], 7))))
        return
    for number in (7, 8):
        rows = [(at, number) for at in inside]
        one.writes(lambda of, rows=rows: overwrite_by_logical_date("sales.times", of.frame(schema, *rows), "At"))
    kept = [] if not partition else [(at, place + 1) for place, at in enumerate(moments) if at not in inside]
    assert one.seen("sales.times", "At", "id") == sorted([(at, 8) for at in inside] + kept, key=repr)


def test_merge_updates_the_columns_that_the_frame_has(begin: Callable[..., Try]) -> None:
    wide = {"id": pa.int64(), "name": pa.string(), "n": pa.int64()}
    one = begin()
    one.writes(
        lambda of: merge("sales.m", of.frame(wide, (1, "a", 10), (2, "b", 20)), key="id"),
        lambda of: merge("sales.m", of.frame({"n": pa.int64(), "id": pa.int64()}, (21, 2), (31, 3)), key="id"),
        lambda of: merge("sales.m", of.frame(ID, (3,), (4,)), key=["id"]),
    )
    assert one.seen("sales.m", "id", "name", "n") == [(1, "a", 10), (2, "b", 21), (3, None, 31), (4, None, None)]


@pytest.mark.parametrize("exists", [True, False])
def test_merge_refuses_keys_that_name_no_row_or_two(begin: Callable[..., Try], *, exists: bool) -> None:
    one = begin()
    if exists:
        one.writes(lambda of: merge("sales.m", of.frame(ROW, (1, "a")), key="id"))
    for rows, problem in (
        (((1, "x"), (1, "y")), r"have a key \(id\) twice; keep one of each"),
        (((5, "x"), (5, "y")), r"have a key \(id\) twice; keep one of each"),
        (((None, "x"), (6, "y")), "have null in the key 'id'; filter them out"),
    ):
        with pytest.raises(PacelineError, match=problem):
            one.writes(lambda of, rows=rows: merge("sales.m", of.frame(ROW, *rows), key="id"))
    with pytest.raises(PacelineError, match="There is no column 'di' to merge by; the rows have id, name"):
        one.writes(lambda of: merge("sales.m", of.frame(ROW, (1, "x")), key="di"))
    if exists:
        assert one.seen("sales.m", "id", "name") == [(1, "a")]


@pytest.mark.parametrize("name", ["sales.people", "sales.all-people"])
def test_bad_rows_go_to_a_table_of_their_own_which_gets_new_columns(begin: Callable[..., Try], name: str) -> None:
    bad = f"{name}_bad"

    def move(of: Try) -> None:
        append_once(name, of.frame(ROW, (1, "a"), (2, None), (3, "c")))
        expect(name).not_null("name").foreign_key("id", name).quarantine(bad)
        append_once(name, expect(of.frame(ROW, (4, None), (5, "e"))).not_null("name").quarantine(bad))

    first = begin()
    first.writes(move)
    assert (first.seen(name, "id"), first.seen(bad, "id")) == ([(1,), (3,), (5,)], [(2,), (4,)])
    first.task.ends()
    again = begin(name="e", run_id="r2")
    noted = {**ROW, "note": pa.string()}
    again.writes(lambda of: expect(of.frame(noted, (6, None, "new"), (7, "g", "x"))).not_null("name").quarantine(bad))
    assert again.seen(bad, "id", "note", "paceline_broken") == [
        (2, None, "(name) is never null"), (4, None, "(name) is never null"), (6, "new", "(name) is never null"),
    ]  # fmt: skip


def test_a_frame_may_read_the_table_that_it_changes(begin: Callable[..., Try]) -> None:
    one = begin()
    one.writes(
        lambda of: overwrite_by_logical_date("sales.days", of.frame(OF_DAY, (DAY, 1), (DAY, 2)), "day"),
        lambda of: overwrite_by_logical_date("sales.days", of.table("sales.days")),
        lambda of: append_once("sales.log", of.frame(ID, (1,), (2,))),
        lambda of: merge("sales.m", of.frame(ID, (1,), (2,)), key="id"),
        lambda of: merge("sales.m", of.table("sales.m"), key="id"),
    )
    one.task.ends()
    again = begin(name="e")
    again.writes(
        lambda of: overwrite_by_logical_date("sales.days", of.table("sales.days")),
        lambda of: append_once("sales.log", of.table("sales.log")),
    )
    assert again.seen("sales.days", "day", "id") == [(DAY, 1), (DAY, 2)]
    assert again.seen("sales.log", "id") == [(1,), (2,)]
    assert again.seen("sales.m", "id") == [(1,), (2,)]
    assert len({row for (row,) in again.seen("sales.log", SOURCE)}) == 1


@pytest.mark.parametrize(
    "query",
    [
        "select day, id from sales.days where id in (select id from sales.days)", "select * from seen", "table cached",
        "with d as (select * from sales.days) select d.* from d join sales.other using (id)",
    ],
    ids=["subquery", "view", "cached", "join"],
)  # fmt: skip
def test_a_query_may_read_the_table_that_it_changes_in_any_way(lake: Lake, jvm: WarmJvm, query: str) -> None:
    def write(of: Try) -> None:
        spark = of.spark
        spark.sql("create table sales.days (day date, id bigint) using iceberg partitioned by (day)")
        spark.sql("create table sales.other using iceberg as select 1L as id union select 2L")
        spark.sql("insert into sales.days values (date'2026-01-02', 1), (date'2026-01-02', 2)")
        spark.sql("select * from sales.days").createOrReplaceTempView("seen")
        spark.sql("cache table cached as select * from sales.days")
        append_once("sales.days", spark.sql(query))  # adds a column
        append_once("sales.days", spark.sql(query).select("day", "id"))
        overwrite_by_logical_date("sales.days", spark.sql(query).select("day", "id").distinct())
        spark.sql("uncache table cached")

    one = Try(lake, jvm, "spark")
    one.writes(write)
    assert one.seen("sales.days", "day", "id") == [(DAY, 1), (DAY, 2)]


def test_names_need_not_be_words(lake: Lake, jvm: WarmJvm) -> None:
    name, odd = "sales.a-b", {"Tag ID": pa.int64(), "a`b.c": pa.int64(), "der tag": pa.date32()}

    def write(of: Try) -> None:
        frame = of.frame(odd, (1, 2, DAY))
        append_once(name, frame)
        merge(name, of.frame({"TAG id": pa.int64(), "A`B.c": pa.int64()}, (1, 3), (2, 4)), key="tag ID")
        merge(name, of.frame({"Tag ID": pa.int64(), "Der Tag": pa.date32()}, (2, DAY)), key="Tag ID")
        overwrite_by_logical_date(name, of.table("sales.`a-b`").drop(SOURCE), "DER TAG")

    one = Try(lake, jvm, "spark")
    one.writes(write)
    assert one.seen(name, *odd) == [(1, 3, DAY), (2, 4, DAY)]


@pytest.mark.parametrize("write", ["append_once", "overwrite_by_logical_date"])
def test_the_inserts_of_a_sql_task_replace_those_of_its_earlier_tries(begin: Callable[..., Try], write: str) -> None:
    def execute(of: Try, sql: str, **options: Any) -> None:
        engine = "spark" if of.engine == "spark" else "duckdb"
        SQLExecuteQueryOperator(task_id="load", sql=sql, engine=engine, **options).execute(of.context)

    def insert(of: Try, sql: str) -> None:
        execute(of, sql, write=write, write_by="day" if write == "overwrite_by_logical_date" else None)

    twice = """
        insert into sales.days (day, id) select date '2026-01-02', id from sales.ids;
        insert into sales.days (id, day) select id + 10, day from sales.days where id < 10
    """
    for name in "ab":
        one = begin(name=name)
        one.writes(
            lambda of: execute(of, "create table if not exists sales.days (day date, id bigint, note string)"),
            lambda of: merge("sales.ids", of.frame(ID, (1,), (2,)), key="id"),
            lambda of: insert(of, twice),
        )
        assert one.seen("sales.days", "day", "id", "note") == [(DAY, number, None) for number in (1, 11, 12, 2)]
        one.task.ends()
    last = begin(name="c")
    last.writes(lambda of: insert(of, "insert into sales.days (day, id) select day, id + 100 from sales.days"))
    assert last.seen("sales.days", "id") == [(101,), (102,), (111,), (112,)]
    with pytest.raises(PacelineError, match="the query has 1 columns, and 2 are needed"):
        last.writes(lambda of: insert(of, "insert into sales.days (day, id) select day from sales.days"))
