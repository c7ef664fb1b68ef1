"""The difference between a table and another one that has replaced it under its name."""

from datetime import date
from typing import Any

import pytest
from support.tables import Lake

from paceline.tables import sql
from paceline.tables.duckdb_engine import DuckDbEngine
from scheduler.catalog.describe import difference


@pytest.mark.parametrize(
    ("before", "after", "schema", "added"),
    [
        (
            "1::int as id, 'a' as who", "1::bigint as id, 'a' as other",
            ["added other string", "removed who", "changed id from int to long"], [],
        ),
        (
            "1 as id, 1 as day", "1 as id, date '2026-01-02' as day",
            ["changed day from int to date"], [{"day": "2026-01-02", "id": 1}],
        ),
        ("1 as id", "[1, 2] as id", ["changed id from int to list<int>"], [{"id": "[1, 2]"}]),
        ("1 as id, date '2026-01-02' as day", "2 as id, date '2026-01-02' as day", [], [{"id": 2, "day": date(2026, 1, 2)}]),
    ],
)  # fmt: skip
def test_columns_are_compared_by_name_and_values_of_other_types_as_text(
    lake: Lake, before: str, after: str, schema: list[str], added: list[dict[str, Any]]
) -> None:
    person, numbers = lake.person(), list[int]()
    for query in (before, after):
        script = sql.parse(f"drop table if exists sales.t; create table sales.t as select {query}", "duckdb")
        DuckDbEngine(person).run(script, {}, 1)
        numbers.append(lake.scenario.rows("select number from table_publication")[0][0])

    found = difference(lake.scenario.settings, lake.scenario.engine, "sales", "t", before=numbers[0], after=numbers[1], limit=5)

    assert (found["schema"], found["added"]) == (schema, added)
    assert found["added_rows"] == found["removed_rows"] == len(added)
