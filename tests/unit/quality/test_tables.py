"""Checks of tables and frames with DuckDB, what is compared with earlier runs, suites in YAML, and the quarantine."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from paceline.authoring.asset import Asset, OutletEvents
from paceline.exceptions import PacelineError
from paceline.quality import ExpectationError, Report, check, expect, propose
from paceline.tables import append_once
from tests.unit.tables.conftest import InTask, catalog, in_task  # noqa: F401

NOW = datetime(2026, 1, 3, tzinfo=UTC)
PEOPLE = pa.table({
    "id": [1, 2, 2, 3], "name": ["ann", "bob", "cy", None], "age": pa.array([30, None, 200, -1], pa.int32()),
    "country": ["DE", "FR", "XX", None], "at": pa.array([NOW - timedelta(hours=hours) for hours in (1, 20, 30, 40)]),
})  # fmt: skip
COUNTRIES = pd.DataFrame({"code": ["DE", "FR", "DE"]})


def by_promise(report: Report) -> dict[str, tuple[str, int, str]]:
    return {result.promise: (result.status, result.failing, result.note) for result in report.results}


def test_each_check_counts_the_rows_that_break_it() -> None:
    suite = (
        expect(PEOPLE, "people")
        .columns({"id": "long", "age": "int", "name": None})
        .rows(5)
        .rows(2, 2, where="country in ('DE', 'FR')")
        .not_null("name", "age")
        .not_null("name", where="id < 3")
        .unique("id")
        .unique("id", where="age is null or age < 100")
        .between("age", 0, 120)
        .between("age", None, 100, tolerate=1)
        .accepted_values("country", ["DE", "FR", None])
        .matches("name", "^[ab]")
        .satisfies("id * 10 < age", "grown up")
        .foreign_key("country", COUNTRIES, "code")
    )
    report = check(suite, expect(COUNTRIES).unique("code", tolerate=1), fail=False)

    assert by_promise(report) == {
        "has the columns id long, age int, name": ("passed", 0, ""),
        "has at least 5 rows": ("failed", 0, "it has 4"),
        "has 2 rows where country in ('DE', 'FR')": ("passed", 0, ""),
        "(name, age) is never null": ("failed", 2, ""),
        "(name) is never null where id < 3": ("passed", 0, ""),
        "(id) is unique": ("failed", 1, ""),
        "(id) is unique where age is null or age < 100": ("passed", 0, ""),
        "age is between 0 and 120": ("failed", 2, ""),
        "age is at most 100": ("passed", 1, ""),
        "country is one of DE, FR": ("failed", 1, ""),
        "name matches ^[ab]": ("failed", 1, ""),
        "grown up": ("failed", 1, ""),
        "country is found in code": ("failed", 1, ""),
        "(code) is unique": ("passed", 1, ""),
    }
    samples = {result.promise: result.sample for result in report.results}
    assert samples["(id) is unique"] == ({"id": 2, "copies": 2},)
    assert samples["country is found in code"] == ({"country": "XX", "rows": 1},)
    assert [row["id"] for row in samples["grown up"]] == [3]


def test_a_share_of_the_rows_may_be_tolerated() -> None:
    report = check(
        expect(PEOPLE).not_null("name", tolerate=0.25).not_null("age", tolerate=0.2).not_null("age", tolerate=0.6, where="id = 2"),
        fail=False,
    )
    assert [(one.status, one.failing, one.tolerated) for one in report.results] == [
        ("passed", 1, 1), ("failed", 1, 0), ("passed", 1, 1),
    ]  # fmt: skip


def test_a_check_that_cannot_be_computed_fails_alone() -> None:
    report = check(expect(PEOPLE).satisfies("ag > 3").not_null("id").not_null("nme"), fail=False)

    assert [one.status for one in report.results] == ["failed", "passed", "failed"]
    assert "DuckDB cannot check it" in report.results[0].note
    assert "there is no column nme; it has id, name" in report.results[2].note


@pytest.mark.parametrize("wrong", [{"tolerate": 1.5}, {"tolerate": -1}, {"tolerate": True}])
def test_a_tolerance_is_a_number_of_rows_or_a_share(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="tolerate is a number of rows"):
        expect(PEOPLE).not_null("id", **wrong)


def test_a_table_is_checked_as_the_task_sees_it(catalog: SqlCatalog, in_task: InTask) -> None:  # noqa: F811
    xcoms: dict[str, Any] = {}
    with in_task(xcoms=xcoms, now=NOW) as values:
        values["outlet_events"] = OutletEvents([Asset.table("sales.people")])
        append_once("sales.people", PEOPLE)
        check(expect("sales.people").not_null("id").not_null("name", warn=True).rows(4))
        with pytest.raises(ExpectationError, match=r"sales\.people: \(id\) is unique - broken by 1 row"):
            check(expect(Asset.table("sales.people")).unique("id").fresh("at", 2))

    assert values["outlet_events"].to_xcom()["table:sales.people"]["extra"]["checks"] == {
        "passed": 3, "warned": ["sales.people: (name) is never null - broken by 1 row"],
    }  # fmt: skip
    assert [one["status"] for one in xcoms["expectations"]] == ["passed", "warned", "passed", "failed", "passed"]
    with pytest.raises(PacelineError, match="only in a task"):
        check(expect("sales.people").rows(1))


def test_the_newest_row_must_be_fresh(in_task: InTask) -> None:  # noqa: F811
    with in_task(now=NOW + timedelta(hours=3)):
        report = check(expect(PEOPLE).fresh("at", 5).fresh("at", timedelta(hours=3.5)).fresh("at", 1, where="id = 9"), fail=False)

    assert [(one.status, one.note) for one in report.results] == [
        ("passed", ""), ("failed", "the newest is of 2026-01-02 23:00:00 UTC"), ("failed", "there is no value"),
    ]  # fmt: skip


def test_measures_are_compared_with_earlier_runs(in_task: InTask) -> None:  # noqa: F811
    xcoms: dict[str, Any] = {}

    def run(run_id: str, ages: list[int | None]) -> list[tuple[str, str]]:
        frame = pa.table({"age": pa.array(ages, pa.int32())})
        xcoms.pop("expectations", None)
        with in_task(run_id=run_id, xcoms=xcoms):
            suite = expect(frame, "people").stable().stable("mean", "age", change=0.2).stable("nulls", "age", change=0.3)
            return [(one.status, one.note) for one in check(suite, fail=False).results]

    passed = [("passed", "")] * 3
    assert run("1", [10, 10, None, 10]) == passed
    assert run("2", [10, 11, 10, 10]) == passed
    assert run("3", [30]) == [
        ("failed", "it is 1, and was usually 4"), ("failed", "it is 30, and was usually 10.125"), ("passed", ""),
    ]  # fmt: skip
    # What failed is no measure for others, and a repeated run is not compared with itself.
    assert run("4", [10, 10, 10, None]) == passed
    assert run("4", [10, 11, 10, 11, None]) == passed
    assert [run_id for run_id, _ in xcoms["measures"]["people: the number of rows changes by at most 50%"]] == ["1", "2", "4"]


YAML = """
checks:
  - columns: {id: bigint, name: string}
  - rows: {least: 1}
  - not_null: [id, country]
  - not_null: {columns: name, tolerate: 0.5, where: id > 0}
  - unique: name
  - between: {column: age, low: 0, high: 250, warn: true}
  - accepted_values: {column: country, values: [DE, FR, XX]}
  - satisfies: id > 0
  - fresh: {column: at, within: 1000000}
"""


def test_a_suite_is_read_from_yaml(tmp_path: Path) -> None:
    (tmp_path / "people.yaml").write_text(YAML)
    report = check(expect(PEOPLE).read(tmp_path / "people.yaml"), fail=False)

    assert [one.status for one in report.results] == [
        "passed", "passed", "failed", "passed", "passed", "warned", "passed", "passed", "passed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- not_nul: id", "people.yaml, check 1: there is no check 'not_nul'"),
        ("- rows: 1\n- rows: {lest: 1}", "people.yaml, check 2: .*lest"),
        ("- check: {fail: false}", "there is no check 'check'"),
        ("- [rows]", "write it as `name: arguments`"),
        ("rows: 1", "has 'rows'; it may have a list of checks"),
        ("checks: [rows: 1]\nchekcs: [rows: 2]", "has 'chekcs'"),
        ("checks: {rows: 1}", "must be a list of checks"),
        ("- rows: {least: three}", "check 1: .*number as least, not 'three'"),
        ("- stable: {measure: rows, change: 50%}", "number as change, not '50%'"),
        ("- fresh: {column: at, within: 1d}", "number as within, not '1d'"),
        ("- not_null: {columns: id, warn: 'false'}", "warn is true or false, not 'false'"),
        ("- not_null: {columns: id, where: 5}", "where is a SQL condition, not 5"),
        ("- between: {column: id, low: 5, high: 1}", "not above the highest one, not 5 and 1"),
        ("- {", "is not YAML"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "people.yaml").write_text(text)
    with pytest.raises(ValueError, match=problem):
        expect(PEOPLE).read(tmp_path / "people.yaml")


def test_bad_rows_go_to_a_table_of_their_own(catalog: SqlCatalog, in_task: InTask) -> None:  # noqa: F811
    xcoms: dict[str, Any] = {}
    for _ in range(2):  # a repeated try
        catalog.drop_table("sales.people") if catalog.table_exists("sales.people") else None
        with in_task(xcoms=xcoms):
            append_once("sales.people", PEOPLE)
            suite = expect("sales.people").not_null("name").between("age", 0, 120).unique("id").not_null("country", warn=True)
            assert suite.quarantine("sales.bad") is None
            good = expect(PEOPLE).not_null("name").quarantine("sales.bad")

    bad = [(row["id"], row["paceline_broken"]) for row in catalog.load_table("sales.bad").scan().to_arrow().to_pylist()]
    null, both = "(name) is never null", "(name) is never null\nage is between 0 and 120"
    assert sorted(bad) == [(2, "age is between 0 and 120"), (3, null), (3, both)]
    assert catalog.load_table("sales.people").scan().to_arrow()["name"].to_pylist() == ["ann", "bob"]
    assert good["id"].to_pylist() == [1, 2, 2]
    assert xcoms["expectations"][0]["note"] == "2 rows are in sales.bad"


def test_a_table_of_bad_rows_gets_the_columns_that_later_rows_have(catalog: SqlCatalog, in_task: InTask) -> None:  # noqa: F811
    ids = pa.array([None, 1], pa.int64())
    for run_id, rows in (("r1", pa.table({"id": ids})), ("r2", pa.table({"id": ids, "note": ["new", "x"]}))):
        with in_task(run_id=run_id):
            expect(rows).not_null("id").quarantine("sales.bad")

    assert sorted(map(str, catalog.load_table("sales.bad").scan().to_arrow()["note"].to_pylist())) == ["None", "new"]


def test_a_proposed_suite_passes_and_finds_what_differs(tmp_path: Path) -> None:
    usual = pa.table({
        "id": range(40), "shop": ["a", "b"] * 20, "amount": [float(n % 7) for n in range(40)], "note": [None, "x"] * 20,
    })  # fmt: skip
    (tmp_path / "suite.yaml").write_text(propose(usual))
    odd = usual.set_column(1, "shop", pa.array(["c"] * 40)).set_column(2, "amount", pa.array([99.0] * 40))

    assert check(expect(usual).read(tmp_path / "suite.yaml")).passed
    broken = [one.promise for one in check(expect(odd).read(tmp_path / "suite.yaml"), fail=False).results if one.failing]
    assert broken == ["shop is one of a, b", "amount is between 0 and 9"]
    assert "rows: {least: 0}" in propose(usual.slice(0, 0)).replace("\n    ", " {").replace("least: 0\n", "least: 0}\n")


@pytest.mark.parametrize(
    "values",
    [
        [1_700_000_001, 1_700_000_001, 1_700_000_004],
        [5453469879713571841, 5453469879713571841],
        [1234567.8911, 1234567.8911, 1234567.8912],
        [0.000123456789, 0.000123456789],
        [-0.1, -0.1, 0.3],
        [Decimal("12345678901234567890.12")] * 2,
        [float("inf"), 1.0, 1.0],
    ],
)
def test_a_proposed_range_has_the_values_of_today(tmp_path: Path, values: list[Any]) -> None:
    table = pa.table({"n": values})
    (tmp_path / "suite.yaml").write_text(propose(table))

    assert {one.status for one in check(expect(table).read(tmp_path / "suite.yaml")).results} == {"passed"}


def test_a_column_without_a_value_has_any_type_in_what_is_proposed() -> None:
    assert "  - columns:\n      n: null\n" in "  " + propose(pa.table({"n": pa.nulls(2)})).replace("\n", "\n  ")


def test_the_columns_that_paceline_adds_are_not_proposed() -> None:
    assert "paceline" not in propose(pa.table({"n": [1], "paceline_source": [1], "paceline_broken": ["x"]}))
