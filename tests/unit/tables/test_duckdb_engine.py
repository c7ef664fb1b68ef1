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
        ("insert or replace into sales.orders values (1, 'a', 1)", "knows INSERT"),
        ("insert or ignore into sales.orders values (1, 'a', 1)", "knows INSERT"),
        ("insert into sales.orders values (1, 'a', 1) returning id", "knows INSERT"),
        ("delete from sales.orders where id = 1 returning 0", "no RETURNING"),
        ("comment on table sales.orders is 'all orders'", "cannot run COMMENT on sales.orders"),
        ("copy sales.orders from 'orders.csv'", "cannot run COPY on sales.orders"),
        ("insert into sales.orders select 4, 'd', 1; rollback", "publishes nothing"),
        ("create table copies as from sales.orders", "CREATE TABLE copies: name it with its namespace"),
        ("create table sales.x (id int default 3)", "cannot have id DEFAULT 3"),
        ("create table sales.x (id int, primary key (id))", r"cannot have PRIMARY KEY \(id\)"),
        ("create table sales.x (id int) location 's3://elsewhere'", "cannot have LOCATION"),
    ],
)
def test_what_cannot_be_written_is_refused(orders: SqlCatalog, text: str, problem: str) -> None:
    with pytest.raises(PacelineError, match=problem):
        run(orders, text)


def test_temporary_tables_views_macros_and_settings_stay_until_the_last_statement(orders: SqlCatalog) -> None:
    rows = run(
        orders,
        """
        set threads = 1;
        create temp table chosen as select id, shop, amount from sales.orders where shop = :shop;
        create temp view counted as select count(*) as n from sales.orders;
        create temp macro twice(x) as 2 * x;
        update chosen set id = id + 10;
        insert into sales.orders from chosen;
        select n, twice(n), current_setting('threads') from counted
        """,
        shop="b",
    )

    assert rows == [(5, 10, 1)]
    assert run(orders, "select list(id order by id) from sales.orders") == [([1, 2, 3, 12, 13],)]
    assert run(orders, "create temp table gone as select 1 as x") is None


def test_begin_and_commit_are_those_of_the_task(orders: SqlCatalog) -> None:
    run(orders, "begin; insert into sales.orders values (4, 'd', 40); delete from sales.orders where id = 1; commit")

    assert run(orders, "select list(id order by id) from sales.orders") == [([2, 3, 4],)]


def test_a_table_gets_what_its_definition_says(catalog: SqlCatalog) -> None:
    run(
        catalog,
        """
        create schema if not exists shops;
        create table shops.log (id int not null, at timestamp_ns) with ('paceline.rebase-appends' = 'true');
        create table shops.empty as from shops.log with no data
        """,
    )

    table = catalog.load_table("shops.log")
    assert table.properties["paceline.rebase-appends"] == "true"
    assert [one.required for one in table.schema().fields] == [True, False]
    with pytest.raises(PacelineError, match="null values to non-nullable"):
        run(catalog, "insert into shops.log (at) values ('2026-01-02')")
    assert run(catalog, "from shops.empty") == []


@pytest.mark.parametrize("by", ["month(day)", "bucket(64, id), month(day)", "day"])
def test_an_overwrite_replaces_the_partitions_of_its_rows_and_no_others(catalog: SqlCatalog, by: str) -> None:
    run(
        catalog,
        f"create table sales.days (id int, day date) partitioned by ({by});"
        " insert into sales.days values (1, '2026-01-05'), (2, '2026-02-05'), (3, null);"
        " insert overwrite sales.days values (1, '2026-01-05'), (1, '2026-01-05');"
        " insert overwrite sales.days select * from sales.days where false",
    )

    rows = run(catalog, "from sales.days order by id")
    assert rows == [(1, date(2026, 1, 5)), (1, date(2026, 1, 5)), (2, date(2026, 2, 5)), (3, None)]


def test_partitions_of_an_older_partitioning_are_not_replaced(catalog: SqlCatalog) -> None:
    run(catalog, "create table sales.days (id int, day date); insert into sales.days values (1, '2026-01-05')")
    with catalog.load_table("sales.days").update_spec() as spec:
        spec.add_field("day", "month")

    with pytest.raises(PacelineError, match="older partitioning"):
        run(catalog, "insert overwrite sales.days values (1, '2026-01-05')")


def test_names_of_columns_have_any_case(orders: SqlCatalog) -> None:
    run(orders, "insert into sales.orders (ID, Shop) values (4, 'd'); insert into sales.orders by name select 5 as Id, 'e' as SHOP")

    assert run(orders, "select id, shop from sales.orders where id > 3 order by 1") == [(4, "d"), (5, "e")]


def test_drop_table_drops_each_table_that_it_names(orders: SqlCatalog) -> None:
    run(orders, "create table sales.a as select 1 as x; create table sales.b as select 1 as x; drop table sales.a, sales.b")

    assert not orders.table_exists("sales.a") and not orders.table_exists("sales.b")


def test_truncate_leaves_an_empty_table(orders: SqlCatalog) -> None:
    assert run(orders, "truncate table sales.orders; from sales.orders") == []


def test_tables_of_an_attached_database_are_not_of_the_catalog(orders: SqlCatalog, tmp_path: Any) -> None:
    script = sql.parse(
        f"attach '{tmp_path}/other.db' as other; create table other.main.ids as select id from sales.orders", "duckdb"
    )
    assert (script.reads, script.writes) == (("sales.orders",), ())
    DuckDbEngine(orders).run(script, {}, 10)

    rows = run(
        orders, f"attach '{tmp_path}/other.db'; insert into sales.orders (id) from other.main.ids; from other.ids order by 1"
    )
    assert rows == [(1,), (2,), (3,)]
    assert run(orders, "select count(*) from sales.orders") == [(6,)]


def test_an_insert_converts_values_as_duckdb_does(catalog: SqlCatalog) -> None:
    run(
        catalog,
        """
        create table sales.prices (price decimal(10, 2), at timestamptz, day date, "a""b" varchar);
        from sales.prices;
        insert into sales.prices
         select price * 1.19, at, at, price from (values (2.55::decimal(10, 2), '2026-01-02 03:04')) t(price, at);
        insert into sales.prices by name select '7' as price, timestamp '2026-01-02 00:00' as day
        """,
    )

    assert run(catalog, "from sales.prices order by price") == [
        (Decimal("3.03"), datetime(2026, 1, 2, 3, 4, tzinfo=UTC), date(2026, 1, 2), "2.55"),
        (Decimal("7.00"), None, date(2026, 1, 2), None),
    ]
    with pytest.raises(PacelineError, match=r"types of the table sales\.prices: .*123456789"):
        run(catalog, "insert into sales.prices (price) values (123456789)")


def test_a_file_may_begin_with_a_byte_order_mark(catalog: SqlCatalog) -> None:
    assert run(catalog, "\ufeffselect 1") == [(1,)]
