"""docs/reference/airflow-parity.md names tests that exist, has every row, and has few rows with "no"."""

import ast
from collections.abc import Iterator

from paceline.authoring.task_arguments import TriggerRule
from tools.sources import ROOT, check, differences, missing, read, rows, tree

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


def table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading."""
    return rows(read("docs/reference/airflow-parity.md").split(f"\n## {heading}")[1].split("\n## ")[0])[1:]


def wrong_tests(name: str, cell: str) -> Iterator[str]:
    """What is wrong with the tests that a cell names."""
    yield from missing([one for one in cell.split(",") if one.strip()]) if cell else [f"{name} names no test"]


@check
def every_feature_of_airflow_has_its_row_and_its_tests() -> Iterator[str]:
    """The tables of features are complete, and say what is different."""
    lacking = []
    for heading, features in FEATURES.items():
        found = table(heading)
        yield from differences({name.split(":")[0] for name, *_ in found}, features, f"no feature of {heading}")
        yield from differences({name for name, *_ in found if ":" not in name}, features, f"no feature of {heading}")
        for name, answer, note, shown_by in found:
            if answer not in {"yes", "different", "no"} or (answer == "different" and not note):
                yield f"{name} does not say whether it is the same, or what is different"
            if shown_by or answer != "no":
                yield from wrong_tests(name, shown_by)
            lacking += [name] if answer == "no" else []
    yield from (f"the whole feature {name} is missing" for name in lacking if ":" not in name)
    if len(lacking) > MOST_NO:
        yield f"{len(lacking)} rows have no; at most {MOST_NO} are allowed"


@check
def every_known_failure_and_difference_has_its_tests() -> Iterator[str]:
    """The failures are numbered, and the differences are those of tests/support/airflow_differences.py in the same order."""
    yield from differences({name.split(".")[0] for name, _ in table("Known failures")}, FAILURES, "no known failure")
    for name, shown_by in table("Known failures"):
        yield from wrong_tests(name, shown_by)
    nodes = ast.walk(tree(ROOT / "tests/support/airflow_differences.py"))
    listed = [ast.literal_eval(node.value) for node in nodes if isinstance(node, ast.Assign)]
    if [name for name, *_ in table("Differences")] != listed:
        yield "the section Differences has other rows than tests/support/airflow_differences.py, or another order"
    for name, reason, shown_by in table("Differences"):
        yield from wrong_tests(name, shown_by) if reason else [f"{name} has no reason"]
