"""DuckDB on real Iceberg tables: reads, each kind of write, and the tables whose files it cannot read itself."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import IntegerType, LongType

from paceline.exceptions import PacelineError
from paceline.tables import duckdb_engine, sql
from paceline.tables.duckdb_engine import DuckDbEngine


def run(catalog: SqlCatalog, text: str, limit: int = 100, **parameters: Any) -> Any:
    return DuckDbEngine(catalog).run(sql.parse(text, "duckdb"), parameters, limit)


@pytest.fixture
def orders(catalog: SqlCatalog) -> SqlCatalog:
    run(
        catalog, "create table sales.orders as select * from (values (1, 'a', 10), (2, 'b', 20), (3, 'b', 30)) t (id, shop, amount)"
    )
    return catalog


def test_statements_see_what_the_ones_before_them_wrote(orders: SqlCatalog) -> None:
    rows = run(
        orders,
        """
        create table sales.totals partitioned by (shop) as select shop, sum(amount)::bigint as total from sales.orders group by 1;
        insert into sales.totals (total, shop) values (:total, :shop);
        insert overwrite sales.totals select 'b', total + 1 from sales.totals where shop = 'b';
        select * from lake.sales.totals order by shop
        """,
        total=7, shop="it's %",
    )  # fmt: skip

    assert rows == [("a", 10), ("b", 51), ("it's %", 7)]
    assert [str(field.transform) for field in orders.load_table("sales.totals").spec().fields] == ["identity"]


def test_merge_delete_and_update_change_the_table_once(orders: SqlCatalog) -> None:
    run(
        orders,
        """
        merge into sales.orders t using (select 3 as id, 'c' as shop, 33 as amount union all select 4, 'd', 40) s on t.id = s.id
         when matched then update set amount = s.amount when not matched then insert *;
        delete from sales.orders where id in (select min(id) from sales.orders where amount > :least);
        update sales.orders set shop = upper(shop) where amount = 33
        """,
        least=15,
    )  # fmt: skip
    assert run(orders, "from sales.orders order by id") == [(1, "a", 10), (3, "B", 33), (4, "d", 40)]

    before = orders.load_table("sales.orders").metadata_location
    run(orders, "delete from sales.orders where id = 99")
    assert orders.load_table("sales.orders").metadata_location == before


def test_create_replaces_only_with_or_replace(orders: SqlCatalog) -> None:
    run(orders, "create table if not exists sales.orders as select 1 as x")
    with pytest.raises(PacelineError, match=r"sales\.orders: it exists"):
        run(orders, "create table sales.orders as select 1 as x")
    run(
        orders,
        "create or replace table sales.orders as select id + 1 as x from sales.orders; create table sales.none (a int, b date)",
    )

    assert run(orders, "select x from sales.orders order by 1") == [(2,), (3,), (4,)]
    assert run(orders, "from sales.none") == []
    run(orders, "drop table sales.orders; drop table if exists sales.orders")
    assert not orders.table_exists("sales.orders")


def test_every_type_survives(catalog: SqlCatalog) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    run(
        catalog,
        "create table sales.types as select true as b, 1::int as i, 2::bigint as l, 1.5::float as f, 2.5::double as d,"
        " 1.25::decimal(9, 2) as n, date '2026-01-02' as day, timestamp '2026-01-02 03:04:05' as t, :at::timestamptz as z,"
        " 'x' as s, '\\x01'::blob as y, [1, 2] as a, {'k': 1} as r",
        at=at,
    )
    expected = (
        True, 1, 2, 1.5, 2.5, Decimal("1.25"), date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5), at, "x", b"\x01", [1, 2], {"k": 1},
    )  # fmt: skip
    assert run(catalog, "from sales.types") == [expected]
    run(catalog, "create table sales.flat as select * exclude (a, r) from sales.types")
    assert run(catalog, "from sales.flat") == [expected[:-2]]
    assert duckdb_engine._files(catalog.load_table("sales.types")) is None
    assert duckdb_engine._files(catalog.load_table("sales.flat")) is not None


def test_columns_are_found_after_the_schema_has_changed(orders: SqlCatalog) -> None:
    table = orders.load_table("sales.orders")
    with table.update_schema() as change:
        change.rename_column("amount", "price")
        change.update_column("id", LongType())
        change.delete_column("shop")
    with table.update_schema() as change:
        change.add_column("amount", IntegerType())
    table.append(pa.table({"id": [9], "price": pa.array([90], pa.int32()), "amount": pa.array([1], pa.int32())}))

    assert run(orders, "select id, price, amount from sales.orders order by id") == [
        (1, 10, None),
        (2, 20, None),
        (3, 30, None),
        (9, 90, 1),
    ]


def test_tables_with_other_names_of_columns_go_through_arrow(orders: SqlCatalog) -> None:
    with orders.load_table("sales.orders").transaction() as change:
        change.set_properties({"schema.name-mapping.default": "[]"})

    assert duckdb_engine._files(orders.load_table("sales.orders")) is None
    assert run(orders, "select count(*), sum(amount) from sales.orders o where o.shop = 'b'") == [(2, 50)]
    assert run(orders, "from sales.orders where id = 1") == [(1, "a", 10)]


def test_rows_are_few_or_an_error(orders: SqlCatalog) -> None:
    with pytest.raises(PacelineError, match="more than 2 rows"):
        run(orders, "from sales.orders", limit=2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("insert into sales.orders select 1, 'a'", "has 2 columns, and 3 are needed"),
        ("insert into sales.orders by name select 1 as idd", "no column 'idd'"),
        ("insert into sales.orders values ('x', 'a', 1)", "do not have the types"),
        ("alter table sales.orders add column x int", "engine='spark'"),
    ],
)
def test_what_cannot_be_written_is_refused(orders: SqlCatalog, text: str, problem: str) -> None:
    with pytest.raises(PacelineError, match=problem):
        run(orders, text)
