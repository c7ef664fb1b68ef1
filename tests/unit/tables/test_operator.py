"""Tasks in SQL: what the DAG file shows of them, and what a try runs."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog

from paceline import DAG, Asset, task
from paceline.authoring.frames import DataFrameReference
from paceline.exceptions import DagError, PacelineError, XComError
from paceline.operators import SQLExecuteQueryOperator
from paceline.quality import ExpectationError, expect
from scheduler.serialized import authored
from scheduler.settings import Core, Scheduler
from tests.unit.tables.conftest import InTask

TOTALS = """\
create or replace table sales.totals as
select shop, sum(amount) as total from sales.orders where amount > :least group by 1
"""


def serialized(dag: DAG) -> Any:
    return {one.task_id: one for one in authored.from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler()).tasks}


def operator(**arguments: Any) -> SQLExecuteQueryOperator:
    with DAG("shop"):
        return SQLExecuteQueryOperator(task_id="one", **arguments)


def test_tables_become_assets_and_columns_become_lineage() -> None:
    with DAG("shop") as dag:
        SQLExecuteQueryOperator(
            task_id="totals", sql=TOTALS, parameters={"least": 3}, outlets=[Asset.table("sales.totals"), Asset("also")]
        )
    one = dag.get_task("totals")

    assert [asset.uri for asset in one.outlets] == ["table:sales.totals", "also"]
    assert [asset.uri for asset in one.inlets] == ["table:sales.orders"]
    assert serialized(dag)["totals"].lineage == {
        "inputs": ["table:sales.orders"],
        "columns": {"sales.totals": {"shop": [["sales.orders", "shop"]], "total": [["sales.orders", "amount"]]}},
    }


def test_a_function_that_returns_literals_is_read_with_the_file() -> None:
    with DAG("shop") as dag:

        @task.sql(parameters={"least": 1})
        def totals() -> str:
            return """
                create or replace table sales.totals as
                select count(*) as n from sales.orders where amount > :least"""

        @task.sql(engine="spark")
        def unknown(day: str) -> str:
            return f"insert into sales.{day} select 1"

        @task.sql
        def sorted_totals() -> str:
            def no_sql() -> str:
                return "how; to sort"

            class Order:
                def __str__(self) -> str:
                    return f"by {no_sql()}"

            return "insert into sales.sorted from sales.totals"

        totals()
        unknown("x")
        sorted_totals()

    stored = serialized(dag)
    assert stored["sorted_totals"].outlets == ("table:sales.sorted",)
    assert stored["totals"].outlets == ("table:sales.totals",)
    assert (stored["unknown"].outlets, stored["unknown"].runtime, stored["totals"].runtime) == ((), "pyspark", "python")


def test_an_error_in_a_function_has_the_line_of_its_text() -> None:
    def wrong() -> str:
        return """select 1
            from sales.orders wher x = 1
            group by"""

    with DAG("shop"), pytest.raises(DagError, match=r"Task 'wrong', line [23] of its SQL: ") as error:
        task.sql(wrong)()
    first = wrong.__code__.co_firstlineno
    assert error.value.file == __file__
    assert error.value.line in {first + 2, first + 3}


def test_an_error_in_a_file_has_its_name_and_line(tmp_path: Path) -> None:
    (tmp_path / "totals.sql").write_text("select 1;\n\nselect a frm b c")
    with DAG("shop", template_searchpath=[str(tmp_path)]):
        with pytest.raises(DagError, match=r"Task 'one', totals\.sql, line 3: ") as error:
            SQLExecuteQueryOperator(task_id="one", sql="totals.sql")
        assert (error.value.file, error.value.line) == (str(tmp_path / "totals.sql"), 3)
        with pytest.raises(DagError, match=r"the file 'other\.sql' of sql is in none of"):
            SQLExecuteQueryOperator(task_id="two", sql="other.sql")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"sql": "select :a"}, "the parameter :a has no value"),
        ({"sql": "select :a, :b", "parameters": {"a": 1}}, "the parameter :b has no value"),
        ({"sql": "select 1", "engine": "duckdb", "conn_id": "x"}, "pass one of them"),
        ({"sql": "select 1", "engine": "duck"}, "engine cannot be 'duck'; did you mean 'duckdb'"),
        ({"sql": "select 1", "write": "twice"}, "write cannot be 'twice'"),
        ({"sql": "select 1", "conn_id": "x", "edges": True}, "leave them out with conn_id"),
        ({"sql": "select 1", "parameters": [1]}, "parameters must be a dict"),
        ({"sql": "insert into a.b select 1", "write_by": "day"}, "pass both, or none"),
        ({"sql": "select 1", "conn_id": "x", "dialect": "postgress"}, "dialect: Unknown dialect 'postgress'"),
        ({"sql": "select 1,\n:b", "parameters": {}}, "line 2 of its SQL: the parameter :b has no value"),
        ({"sql": ""}, "sql must be statements"),
        ({"sql": "select 1", "checks": ["x"]}, "checks takes suites"),
        ({"sql": "selec 1", "conn_id": "x", "dialect": "postgres"}, "at 'selec 1'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(DagError, match=problem):
        operator(**arguments)


def test_sql_for_a_connection_is_parsed_only_in_a_known_dialect() -> None:
    assert operator(sql="select top 3 * frm x", conn_id="mssql").outlets == ()


def test_edges_follow_from_the_tables() -> None:
    with DAG("shop") as dag:
        for name, text in {
            "report": "select * from sales.totals",
            "totals": "create or replace table sales.totals as select * from sales.orders",
            "more": "insert into sales.totals select 1",
            "orders": "create or replace table sales.orders as select 1 as x",
        }.items():
            SQLExecuteQueryOperator(task_id=name, sql=text, edges=True)
        SQLExecuteQueryOperator(task_id="apart", sql="select * from sales.totals")

    assert {one.task_id: set(one.upstream_task_ids) for one in dag.tasks} == {
        "report": {"totals", "more"}, "totals": {"orders"}, "more": {"totals"}, "orders": set(), "apart": set(),
    }  # fmt: skip


def circle() -> None:
    with DAG("shop"):
        SQLExecuteQueryOperator(task_id="a", sql="insert into sales.a select * from sales.b", edges=True)
        SQLExecuteQueryOperator(task_id="b", sql="insert into sales.b select * from sales.a", edges=True)


def test_edges_in_a_circle_are_an_error() -> None:
    with pytest.raises(DagError, match="a -> b -> a"):
        circle()


def ran(one: SQLExecuteQueryOperator, values: dict[str, Any]) -> Any:
    return one.render(values).execute(values)


def test_a_try_renders_binds_and_returns_rows(catalog: SqlCatalog, in_task: InTask) -> None:
    one = operator(
        sql=["create table sales.x as select {{ 1 + 1 }} as n, :name as name", "select * from sales.x"],
        parameters={"name": "{{ dag_name }}' or 1=1 --"},
        output_processor=lambda rows: rows[0],
    )
    with in_task() as values:
        assert ran(one, values | {"dag_name": "o'shop"}) == (2, "o'shop' or 1=1 --")


def test_an_insert_is_stored_as_write_says(catalog: SqlCatalog, in_task: InTask) -> None:
    add = operator(sql="insert into sales.log select 1 as id, date '2026-01-02' as day", write="append_once")
    days = operator(
        sql="insert into sales.days select 5 as id, date '{{ data_interval_start.date() }}' as day",
        write="overwrite_by_logical_date", write_by="day",
    )  # fmt: skip
    with in_task() as values:
        ran(operator(sql="create table sales.log (id int, day date); create table sales.days (id int, day date)"), values)
    for _ in range(2):
        with in_task() as values:
            ran(add, values)
            ran(days, values)
    with in_task() as values:
        counted = ran(operator(sql="select (select count(*) from sales.log), (select count(*) from sales.days)"), values)
    assert counted == [(1, 1)]


@pytest.mark.parametrize("write", ["append_once", "overwrite_by_logical_date"])
def test_several_inserts_into_one_table_stay_together(catalog: SqlCatalog, in_task: InTask, write: str) -> None:
    add = operator(
        sql="{% for one in 'ab' %}insert into sales.shops select '{{ one }}', date '{{ data_interval_start.date() }}';{% endfor %}",
        write=write, write_by="day" if write != "append_once" else None,
    )  # fmt: skip
    for _ in range(2):
        with in_task() as values:
            ran(operator(sql="create table if not exists sales.shops (shop varchar, day date)"), values)
            ran(add, values)
            counted = ran(operator(sql="select shop, count(*) from sales.shops group by 1 order by 1"), values)
        assert counted == [("a", 1), ("b", 1)]


def test_sql_that_is_not_text_is_refused(in_task: InTask) -> None:
    with in_task() as values, pytest.raises(PacelineError, match="non-empty str"):
        operator(sql="select 1").run("", values)


def test_checks_run_after_the_sql(catalog: SqlCatalog, in_task: InTask) -> None:
    text = "create or replace table sales.x as select {{ n }} as n"
    one = operator(sql=text, checks=[expect("sales.x").rows(1), expect("sales.x").between("n", 1, None)])
    with in_task() as values:
        ran(one, values | {"n": 1})
        with pytest.raises(ExpectationError, match=r"sales\.x: n is at least 1 - broken by 1 row"):
            ran(one, values | {"n": 0})


def test_a_dataframe_of_another_task_is_a_table_with_the_name_of_its_parameter(in_task: InTask, tmp_path: Path) -> None:
    folder = tmp_path / "frame"
    folder.mkdir()
    parquet.write_table(pa.table({"day": [1, 1, 2], "amount": [1, 2, 3], "note": ["x", "y", "z"]}), folder / "part.parquet")
    fields = [{"name": "day", "type": "long"}, {"name": "amount", "type": "long"}]
    pruned = DataFrameReference(
        url=f"file://{folder}", schema={"type": "struct", "fields": fields}, rows=3, bytes=1, left_out=("note",), task_id="load"
    )

    def days(orders: Any) -> str:
        return "create table sales.days as select day, sum(amount)::int as n from orders group by 1; from sales.days order by day"

    def notes(orders: Any) -> str:
        return "select note from orders"

    def selected(orders: Any) -> str:
        return "select * from orders order by all limit 1"

    with DAG("shop") as dag:
        for function, frame in ((days, pruned), (notes, pruned), (selected, pruned[["day"]])):
            task.sql(function)(frame)
    with in_task() as values:
        values["conn"] = values["var"] = None
        assert ran(dag.get_task("days"), values) == [(1, 3), (2, 3)]
        assert ran(dag.get_task("selected"), values) == [(1,)]
        with pytest.raises(XComError, match="'load' left 'note' out"):
            ran(dag.get_task("notes"), values)


def test_each_name_that_an_asset_may_have_is_one_and_no_other_breaks_the_file() -> None:
    one = operator(sql='insert into sales."my-table" select * from sales."ünï" join sales."2026 q1" using (id)')

    assert (one.reads, one.writes) == (("sales.ünï", "sales.2026 q1"), ("sales.my-table",))
    assert ([each.uri for each in one.inlets], one.outlet_uris) == (["table:sales.2026 q1"], ("table:sales.my-table",))
