"""Spark on the catalog of a try: warm sessions of real Spark, the real catalog, and what others see before and after the report."""

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from support import tables
from support.spark_tables import Task, jvm, lake, settings
from support.tables import Lake

from paceline.operators.sql import SQLExecuteQueryOperator
from paceline.states import TaskState
from paceline.tables import sql
from paceline.tables.duckdb_engine import DuckDbEngine
from workers.spark import causes, iceberg
from workers.spark.sessions import session
from workers.spark.sessions.session_pool import WarmJvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jvm", "lake", "settings"]

pytestmark = pytest.mark.spark


def seen(lake: Lake, name: str) -> list[tuple[Any, ...]] | None:
    """The rows that others see; None if there is no such table."""
    catalog = lake.person()
    if not catalog.table_exists(name):
        return None
    found = catalog.load_table(name).scan().to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


# The first test: what Iceberg changes in a JVM, it changes with its first table.
def test_a_jvm_that_has_read_its_first_table_stays_warm(jvm: WarmJvm, tmp_path: Path) -> None:
    key = "spark.sql.catalog.folder"  # without a server in this process, whose threads would end the JVM
    conf = {key: iceberg.CATALOG_CLASS, f"{key}.type": "hadoop", f"{key}.warehouse": str(tmp_path)}

    with session.opened(jvm, conf, name="test") as spark:
        spark.sql("create table folder.sales.t as select 1 as id")
        assert spark.table("folder.sales.t").count() == 1 and spark.table("folder.sales.t").collect() == [(1,)]

    assert jvm.unfit is None


def test_two_tables_appear_together_with_the_success_of_their_task(lake: Lake, jvm: WarmJvm) -> None:
    task = Task(lake, jvm, "d")

    def work(spark: "SparkSession") -> Any:
        spark.createDataFrame([(1, "a"), (2, "b")], "id int, v string").createOrReplaceTempView("given")
        spark.table("given").write.saveAsTable("sales.orders")
        spark.sql("create table sales.sums as select count(*) as orders from sales.orders")
        return [tuple(row) for row in spark.sql("select o.id, s.orders from sales.orders o, sales.sums s order by 1").collect()]

    assert task.run(work) == [(1, 2), (2, 2)], "the task reads what it wrote"
    assert (seen(lake, "sales.orders"), seen(lake, "sales.sums")) == (None, None)

    task.ends()

    assert (seen(lake, "sales.orders"), seen(lake, "sales.sums")) == ([(1, "a"), (2, "b")], [(2,)])


def test_statements_that_change_tables(lake: Lake, jvm: WarmJvm) -> None:
    first = Task(lake, jvm, "first")
    first.sql(
        "create table sales.t (id int, v string, day int) partitioned by (day)",
        "insert into sales.t values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
        "create table sales.gone as select 1 as id",
    )
    first.ends()
    second = Task(lake, jvm, "second")
    found = second.sql(
        "insert overwrite sales.t values (20, 'new', 2)",
        "merge into sales.t t using (select 1 as id, 'merged' as v, 1 as day union all select 4, 'added', 4) u on t.id = u.id"
        " when matched then update set v = u.v when not matched then insert *",
        "delete from sales.t where id = 3",
        "alter table sales.t add column extra int",
        "update sales.t set extra = 7 where id = 4",
        "create or replace table sales.copy as select id from sales.t where id < 4",
        "drop table sales.gone",
        "select * from sales.t order by id",
    )

    assert found == [(1, "merged", 1, None), (4, "added", 4, 7), (20, "new", 2, None)]
    assert seen(lake, "sales.t") == [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    assert (seen(lake, "sales.copy"), seen(lake, "sales.gone")) == (None, [(1,)])

    second.ends()

    assert seen(lake, "sales.t") == found
    assert (seen(lake, "sales.copy"), seen(lake, "sales.gone")) == ([(1,)], None)


def test_a_failure_publishes_nothing_and_the_next_try_doubles_nothing(lake: Lake, jvm: WarmJvm) -> None:
    scenario, task = lake.scenario, Task(lake, jvm, "d")
    lake.person().create_table("sales.t", tables.SCHEMA)
    task = Task(lake, jvm, "e")
    task.sql("insert into sales.t values (1, 'first')")
    task.ends(TaskState.UP_FOR_RETRY)
    assert seen(lake, "sales.t") == []

    scenario.turn()
    claim = scenario.claim(next(message for message in scenario.messages()))
    assert claim is not None and claim.try_number == 2
    again = Task(lake, jvm, "e", claim)
    again.sql("insert into sales.t values (1, 'second')")
    again.ends()

    assert seen(lake, "sales.t") == [(1, "second")]


def test_a_sql_task_sends_few_requests_to_the_catalog(lake: Lake, jvm: WarmJvm) -> None:
    first = Task(lake, jvm, "first")
    first.sql("create table sales.t as select 1 as id", "create table sales.u as select 1 as id")
    first.ends()
    query = "select count(*) from sales.t join sales.u using (id) where id in (select id from sales.t)"
    task, operator = Task(lake, jvm, "second"), SQLExecuteQueryOperator(task_id="q", sql=query, engine="spark")
    lake.requests.clear()

    assert task.run(lambda spark: operator.execute({"spark": spark})) == [(1,)]

    # Spark reads each table when it analyses a query; from 4.1 again when it runs it, and before that once for a subquery, too.
    table, of_t = "GET /v1/namespaces/sales/tables/", 3 if pyspark.__version__.startswith(("3.", "4.0.")) else 2
    assert Counter(lake.requests) <= Counter({"GET /v1/config": 1, f"{table}t": of_t, f"{table}u": 2})

    lake.requests.clear()
    task.sql("create or replace table sales.t as select 2 as id")

    assert len(lake.requests) <= of_t + 4, lake.requests


def test_a_session_has_nothing_of_an_earlier_one_in_its_jvm(lake: Lake, jvm: WarmJvm) -> None:
    one, two = Task(lake, jvm, "one"), Task(lake, jvm, "two")
    one.sql("create table sales.t as select 1 as id")

    def work(spark: "SparkSession") -> Any:
        return spark.conf.get("spark.sql.catalog.lake.token"), spark.catalog.tableExists("sales.t")

    assert two.run(work) == (two.token, False)
    with session.opened(jvm, {}, name="without tables") as spark:
        assert spark.conf.get("spark.sql.catalog.lake.token", None) is None
        assert spark.sql("show catalogs").collect() == [("spark_catalog",)]
        assert spark.range(2).count() == 2


def test_the_token_is_on_no_page_of_spark_and_in_no_log(lake: Lake, jvm: WarmJvm, capfd: pytest.CaptureFixture[str]) -> None:
    import requests

    task = Task(lake, jvm, "d")
    task.sql("create table sales.t as select 1 as id", "select * from sales.t")

    pages = jvm.context.uiWebUrl().get()
    application = jvm.context.applicationId()
    for path in (
        "environment/",
        "SQL/",
        f"api/v1/applications/{application}/environment",
        f"api/v1/applications/{application}/sql?details=true",
    ):
        answer = requests.get(f"{pages}/{path}", timeout=20)
        assert answer.ok and task.token not in answer.text, path
    executions = requests.get(f"{pages}/api/v1/applications/{application}/sql", timeout=20).json()
    for execution in executions[-3:]:
        page = requests.get(f"{pages}/SQL/execution/?id={execution['id']}", timeout=20).text
        assert task.token not in page
    assert "spark.sql.catalog.lake.token" in page, "the page has the changed keys of the session"
    output = capfd.readouterr()
    assert task.token not in output.out + output.err + jvm.jvm.recent_output()
    assert not any(
        task.token.encode() in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)
    )


def test_two_dags_save_tables_of_one_name_in_two_namespaces(lake: Lake, jvm: WarmJvm) -> None:
    lake.person().create_namespace("costs")
    for namespace, value in (("sales", 1), ("costs", 2)):
        task = Task(lake, jvm, namespace)
        task.run(lambda spark, value=value, namespace=namespace: spark.range(value).write.saveAsTable(f"{namespace}.t"))
        task.ends()

    assert (seen(lake, "sales.t"), seen(lake, "costs.t")) == ([(0,)], [(0,), (1,)])


def test_duckdb_reads_what_spark_wrote(lake: Lake, jvm: WarmJvm) -> None:
    import duckdb

    task = Task(lake, jvm, "d")
    task.sql("create table sales.t (id int, v string) partitioned by (id)", "insert into sales.t values (1, 'a'), (2, null)")
    task.ends()

    found = (
        lake.person().load_table("sales.t").scan().to_duckdb("t", connection=duckdb.connect()).sql("select * from t order by id")
    )

    assert found.fetchall() == [(1, "a"), (2, None)]


def test_a_reader_that_began_before_an_overwrite_reads_its_snapshot_to_the_last_row(lake: Lake, jvm: WarmJvm) -> None:
    writer = Task(lake, jvm, "w")
    writer.sql("create table sales.t as select id from range(1000)")
    writer.ends()
    reader = lake.person().load_table("sales.t").scan().to_arrow_batch_reader()
    over = Task(lake, jvm, "o")
    over.run(lambda spark: spark.range(5).writeTo("sales.t").overwritePartitions())
    over.ends()

    assert sorted(row for batch in reader for row in batch["id"].to_pylist()) == list(range(1000))
    assert seen(lake, "sales.t") == [(number,) for number in range(5)]


def test_a_table_saved_without_a_namespace_names_what_to_write(lake: Lake, jvm: WarmJvm) -> None:
    task = Task(lake, jvm, "d")

    with pytest.raises(Exception, match="orders") as caught:
        task.run(lambda spark: spark.range(3).write.saveAsTable("orders"))

    cause = causes.of_error(caught.value)
    assert cause is not None and cause.startswith("The table orders has no namespace: write one, such as sales.orders"), cause


def test_views_appear_with_the_success_of_their_task(lake: Lake, jvm: WarmJvm) -> None:
    first = Task(lake, jvm, "first")
    assert first.sql(
        "create table sales.orders as select 1 as id, 5 as price union all select 2, 7",
        "create view sales.dear as select id from sales.orders where price > 6",
        "create view lake.sales.cheap (number comment 'the order') as select id from sales.orders where price < 6",
        "select * from sales.dear",
    ) == [(2,)]
    assert lake.person().list_views("sales") == []
    first.ends()
    assert sorted(lake.person().list_views("sales")) == [("sales", "cheap"), ("sales", "dear")]

    second = Task(lake, jvm, "second")
    both = "select d.id, c.number from sales.dear d, sales.cheap c"
    assert second.sql(both) == DuckDbEngine(lake.person()).run(sql.parse(both, "duckdb"), {}, 10) == [(2, 1)]
    found = second.sql(
        "create or replace view sales.dear as select id, price from sales.orders",
        "alter view sales.cheap set tblproperties ('k' = 'v')",
        "alter view sales.cheap rename to sales.low",
        "select price from sales.dear order by 1",
    )
    assert found == [(5,), (7,)]
    assert sorted(one[1] for one in second.sql("show views in sales")) == ["dear", "low"]
    second.sql("drop view sales.low")
    second.ends(TaskState.FAILED)
    assert Task(lake, jvm, "third").sql("select * from sales.dear, sales.cheap") == [(2, 1)]
