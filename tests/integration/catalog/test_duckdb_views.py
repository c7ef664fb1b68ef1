"""DuckDB reads views of the catalog: that of Spark in its own dialect, on the tables as the try sees them."""

from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, LongType, NestedField, StringType
from pyiceberg.view.metadata import ViewVersion
from support.tables import SCHEMA, Lake, rows

from paceline.exceptions import PacelineError
from paceline.tables import sql
from paceline.tables.duckdb_engine import DuckDbEngine

ID = {"id": LongType()}


def run(catalog: RestCatalog, text: str) -> Any:
    return DuckDbEngine(catalog).run(sql.parse(text, "duckdb"), {}, 100)


def create(
    catalog: RestCatalog, name: str, columns: dict[str, IcebergType], *, properties: dict[str, str] | None = None,
    default_catalog: str | None = "lake", **texts: str,
) -> None:  # fmt: skip
    """Create a view; `texts` are its SQL by dialect."""
    fields = [NestedField(number, *one) for number, one in enumerate(columns.items(), 1)]
    version = {
        "version-id": 1, "schema-id": 0, "timestamp-ms": 1, "default-namespace": ["sales"], "default-catalog": default_catalog,
        "representations": [{"type": "sql", "sql": text, "dialect": dialect} for dialect, text in texts.items()],
    }  # fmt: skip
    catalog.create_view(name, Schema(*fields), ViewVersion.model_validate(version), properties=properties or {})


@pytest.fixture
def orders(lake: Lake) -> RestCatalog:
    person = lake.person()
    person.create_table("sales.orders", SCHEMA).append(rows(1, 2, 3, who="ada"))
    return person


def test_a_view_of_spark_is_read_in_its_default_namespace_with_its_names_and_types(orders: RestCatalog) -> None:
    text = "with big as (select * from orders where id > 1) select nvl(who, 'x') w, sum(id) n from big group by 1"
    create(orders, "sales.totals", {"person": StringType(), "total": LongType()}, spark=text)
    assert run(orders, "select person, total from sales.totals") == [("ada", 5)]
    run(orders, "create table sales.copy as select * from lake.sales.totals")
    assert [str(one.field_type) for one in orders.load_table("sales.copy").schema().fields] == ["string", "long"]


def test_columns_follow_their_names_if_spark_has_kept_them(orders: RestCatalog) -> None:
    kept = {"spark.query-column-names": "who,id"}
    create(orders, "sales.named", {"person": StringType(), "number": LongType()}, properties=kept, spark="select * from orders")
    assert run(orders, "select number, person from sales.named where number = 3") == [(3, "ada")]


def test_the_sql_of_duckdb_comes_first(orders: RestCatalog) -> None:
    create(orders, "sales.v", ID, spark="select id from orders", duckdb="select 10 + id from sales.orders")
    assert run(orders, "select max(id) from sales.v") == [(13,)]


def test_views_of_views_see_what_the_try_has_written(lake: Lake, orders: RestCatalog) -> None:
    create(orders, "sales.below", ID, spark="select id from lake.sales.orders")
    create(orders, "sales.above", ID, spark="select b.id from below b join orders o on b.id = o.id")
    _, catalog = lake.attempt()
    run(catalog, "insert into sales.orders values (4, 'eve')")
    assert run(catalog, "select sum(id) from sales.above") == [(10,)]
    assert lake.scenario.rows("select namespace, name from table_read") == [("sales", "orders")]
    assert run(orders, "select sum(id) from sales.above") == [(6,)]
    # The table that a statement changes, read through a view.
    run(catalog, "delete from sales.orders where id in (select max(id) from sales.above)")
    assert run(catalog, "select sum(id) from sales.above") == [(6,)]


def test_a_view_that_reads_itself_is_an_error_with_its_way(orders: RestCatalog) -> None:
    create(orders, "sales.a", ID, spark="select id from b")
    create(orders, "sales.b", ID, spark="select id from sales.a")
    with pytest.raises(PacelineError, match=r"The view sales\.a reads itself: sales\.a -> sales\.b -> sales\.a\."):
        run(orders, "from sales.a")


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"trino": "select 1"}, r"DuckDB cannot read the view sales\.v: it has SQL for trino alone; use engine='spark'"),
        ({"spark": "select from from"}, r"DuckDB cannot read the view sales\.v: .*; use engine='spark'"),
        ({"spark": "delete from orders"}, "its SQL is no query"),
        (
            {"spark": "select unknown_function_of_spark(id) from orders"},
            r"DuckDB cannot read the view sales\.v: .*unknown_function",
        ),
        ({"spark": "select id from nothing"}, r"The view sales\.v reads sales\.nothing, which is no table or view of the catalog"),
        ({"spark": "select id from hive.sales.orders"}, "which is no table or view of the catalog"),
    ],
)
def test_a_view_that_duckdb_cannot_read_is_an_error_with_the_reason(
    orders: RestCatalog, texts: dict[str, str], problem: str
) -> None:
    create(orders, "sales.v", ID, **texts)
    with pytest.raises(PacelineError, match=problem):
        run(orders, "from sales.v")


@pytest.mark.parametrize("text", ["create view sales.v as from sales.orders", "drop view sales.v"])
def test_duckdb_changes_no_view(orders: RestCatalog, text: str) -> None:
    with pytest.raises(PacelineError, match=r"cannot run (CREATE|DROP) VIEW; use engine='spark'"):
        run(orders, text)


def test_tables_of_another_catalog_are_an_error(orders: RestCatalog) -> None:
    create(orders, "sales.v", ID, default_catalog="spark_catalog", spark="select id from orders")
    with pytest.raises(PacelineError, match=r"it reads sales\.orders of the catalog spark_catalog"):
        run(orders, "from sales.v")
