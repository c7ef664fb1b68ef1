"""docs/reference/airflow-parity.md names tests that exist, has every row, and has few rows with "no"."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from support.airflow_differences import Difference

from paceline.authoring.task_arguments import TriggerRule

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "reference" / "airflow-parity.md"
MOST_NO = 10
#: The rows of Airflow's tables of features; a part of one that differs has a row of its own: "Assets: AssetAlias".
FEATURES = {
    "Authoring": {
        "Decorators", "Standard operators", "Standard sensors", "BaseOperator arguments", "DAG arguments", "Edges", "Branching",
        "ShortCircuit", "LatestOnly", "Sensors", "Deferrable", "XCom", "Dynamic mapping", "Task groups", "Templating", "Params",
        "Setup and teardown", "Callbacks", "Retry", "Backoff formula", "Deadline alerts", "Assets", "Timetables",
    },
    "Trigger rules": {str(rule) for rule in TriggerRule},
    "Scheduling": {
        "catchup", "next run", "Run already exists", "DagRun queued to running", "Running runs examined", "depends_on_past",
        "wait_for_downstream", "wait_for_past_depends_before_skipping", "max_active_runs", "max_active_tasks",
        "max_active_tis_per_dag, max_active_tis_per_dagrun", "Pools", "Priority", "Global cap", "Backfill", "verify_integrity",
        "DAG versioning", "paused", "dagrun_timeout", "execution_timeout", "Clear", "Mark success, failed",
    },
}  # fmt: skip
FAILURES = {str(number) for number in range(1, 26)} - {"19"} | {f"19{letter}" for letter in "abcdef"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@cache
def functions_in(path: str) -> set[str]:
    """The test functions of a file under tests/."""
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def missing(cell: str) -> list[str]:
    """The tests that a cell names and that are not there."""
    named = [one.strip().split("::") for one in cell.split(",") if one.strip()]
    return ["::".join(one) for one in named if not (TESTS / one[0]).is_file() or one[1] not in functions_in(one[0])]


@pytest.mark.parametrize("heading", FEATURES)
def test_every_feature_has_its_row_and_its_tests(heading: str) -> None:
    table = rows(heading)

    assert {name for name, *_ in table if ":" not in name} == FEATURES[heading]
    assert {name.split(":")[0] for name, *_ in table} == FEATURES[heading]
    for name, answer, note, shown_by in table:
        assert answer in {"yes", "different", "no"}, name
        assert missing(shown_by) == [], name
        assert shown_by or answer == "no", f"{name} names no test"
        assert note or answer != "different", f"{name} does not say what is different"


def test_few_rows_have_no() -> None:
    says_no = [name for heading in FEATURES for name, answer, *_ in rows(heading) if answer == "no"]

    assert 0 < len(says_no) <= MOST_NO
    assert all(":" in name for name in says_no), "a whole feature is missing"


def test_every_known_failure_has_its_tests() -> None:
    table = rows("Known failures")

    assert {name.split(".")[0] for name, _ in table} == FAILURES
    for name, shown_by in table:
        assert shown_by and missing(shown_by) == [], name


def test_every_class_of_differences_has_its_reason_and_its_tests() -> None:
    table = rows("Differences")

    assert [name for name, *_ in table] == list(Difference)
    for name, reason, shown_by in table:
        assert reason and shown_by and missing(shown_by) == [], name
