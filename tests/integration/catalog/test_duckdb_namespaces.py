"""DuckDB on tables of namespaces below others, by both names that SQL has for them."""

from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from support.tables import Lake

from paceline.tables import sql
from paceline.tables.duckdb_engine import DuckDbEngine


def run(catalog: RestCatalog, text: str) -> Any:
    return DuckDbEngine(catalog).run(sql.parse(text, "duckdb"), {}, 10)


@pytest.mark.parametrize("name", ["sales.eu.orders", "lake.sales.eu.orders", '"sales.eu".orders', 'lake."sales.eu".orders'])
def test_a_table_of_a_nested_namespace_is_read_and_written(lake: Lake, name: str) -> None:
    _, catalog = lake.attempt()
    rows = run(
        catalog,
        f"create table {name} as select 1 as id, [1] as list; insert into {name} select id + 1, list from {name};"
        f" update {name} set id = id + 10 where id in (select id from {name} where id > 1); delete from {name} where id = 1;"
        f" create temp view joined as select a.id, b.list from {name} a join sales.eu.orders b using (id); from joined",
    )

    assert rows == [(12, [1])]
    assert catalog.list_tables(("sales", "eu")) == [("sales", "eu", "orders")]
