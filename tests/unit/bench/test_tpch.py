"""TPC-H for the bench: what the SQL of its 22 queries says to Paceline, and how answers are compared."""

import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bench.tables import tpch, tpch_dag
from paceline.authoring.asset import TABLE
from paceline.tables import sql

TEXTS = tpch.texts()


def named(text: str) -> set[str]:
    """The tables that a text names."""
    return set(re.findall(r"tpch\.\w+", text))


def test_there_are_22_queries_on_eight_tables() -> None:
    assert list(TEXTS) == [f"q{number:02}" for number in range(1, 23)]
    assert {name for text in TEXTS.values() for name in named(text)} == set(tpch.files(Path("data")))


@pytest.mark.parametrize("dialect", ["spark", "duckdb"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_query_is_one_statement_with_the_tables_that_it_names(name: str, dialect: str) -> None:
    script = sql.parse(TEXTS[name], dialect)

    assert [one.is_query for one in script.statements] == [True]
    assert (set(script.reads), script.writes) == (named(TEXTS[name]), ())
    assert script.parameters == tpch.parameters(1).get(name, {}).keys()


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("q04", {"o_orderpriority": [("tpch.orders", "o_orderpriority")], "order_count": []}),
        ("q06", {"revenue": [("tpch.lineitem", "l_discount"), ("tpch.lineitem", "l_extendedprice")]}),
        ("q22", {"cntrycode": [("tpch.customer", "c_phone")], "numcust": [], "totacctbal": [("tpch.customer", "c_acctbal")]}),
    ],
)
def test_an_answer_from_one_table_has_its_sources(name: str, sources: dict[str, Any]) -> None:
    script = sql.parse(f"create table tpch.answer as {TEXTS[name]}", "spark")

    assert sql.columns(script, "spark") == {"tpch.answer": sources}


@pytest.mark.parametrize("name", TEXTS)
def test_every_answer_that_a_table_keeps_has_columns(name: str) -> None:
    columns = sql.columns(sql.parse(f"create table tpch.answer as {TEXTS[name]}", "spark"), "spark")["tpch.answer"]

    assert {table for sources in columns.values() for table, _ in sources} <= named(TEXTS[name])


def test_the_tasks_know_what_they_read_when_the_dag_file_is_parsed(tmp_path: Path) -> None:
    for name, text in tpch_dag.dag_files(0.1).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    file = tmp_path / "tpch.py"
    values: dict[str, Any] = {"__file__": str(file)}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), values)

    assert {task.task_id: {one.uri.removeprefix(TABLE) for one in task.inlets} for task in values["dag"].tasks} == {
        name: named(text) for name, text in TEXTS.items()
    }


@pytest.mark.parametrize(
    ("value", "right", "is_equal"),
    [
        (3, 3, True),
        ("a", "a", True),
        (date(1995, 3, 5), date(1995, 3, 5), True),
        (Decimal("1.10"), Decimal("1.1"), True),
        (Decimal("1.11"), Decimal("1.10"), False),
        (Decimal("25.522006"), 25.522005853257337, True),
        (Decimal("25.522008"), 25.522005853257337, False),
        (0.1 + 0.2, 0.3, True),
        (None, 0.3, False),
        (None, None, True),
        ("3", 3.0, False),
    ],
)
def test_only_what_is_a_double_in_duckdb_may_be_rounded(value: Any, right: Any, is_equal: bool) -> None:
    assert tpch.is_equal(value, right) is is_equal


def test_a_difference_has_its_place() -> None:
    right = {"q01": [(1, "a"), (2, "b")], "q02": [(1,)], "q03": [(1,)], "q04": [(1,)]}

    assert tpch.differences({"q01": [[1, "a"], [2, "c"]], "q02": [[1], [2]], "q03": [[1]]}, right) == {
        "q01": "row 2, column 2: 'c' instead of 'b'",
        "q02": "2 rows instead of 1",
        "q04": "no answer",
    }
