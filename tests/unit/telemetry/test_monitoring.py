"""The dashboard and the alert rules use existing metrics; promtool, if it is installed, runs the tests of the rules."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.telemetry.catalog import CATALOG, Kind

FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
PROMTOOL = shutil.which("promtool")


def exposed() -> dict[str, set[str]]:
    """Each series of Prometheus, with its labels."""
    found = {"process_resident_memory_bytes": {"job"}, "process_cpu_seconds_total": {"job"}}
    for metric in CATALOG.values():
        suffixes = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.TIMER: ("_bucket", "_sum", "_count")}[metric.kind]
        found |= {metric.prometheus("airflow") + suffix: {*metric.labels, "le", "instance", "job"} for suffix in suffixes}
    return found


def used(expression: str) -> set[str]:
    without = re.sub(r'"[^"]*"', "", expression)
    return set(re.findall(r"\b(?:airflow|paceline|celery|process)_[a-z_]+", without))


def labels(expression: str) -> set[str]:
    matched = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression)
    grouped = [name for names in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for name in names.split(", ")]
    return {*matched, *grouped}


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    assert len(panels) > 30 and len(RULES) > 10
    return panels + [rule["expr"] for rule in RULES]


def test_each_expression_uses_metrics_and_labels_that_exist() -> None:
    series = exposed()

    for expression in expressions():
        names = used(expression)
        assert names and names <= series.keys(), expression
        assert labels(expression) <= set.union(*(series[name] for name in names)), expression


def test_panels_have_their_own_place() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]

    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in DASHBOARD["panels"])


def test_each_alert_has_a_test_and_names_the_remedy() -> None:
    tested = {rule["alertname"] for one in yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
              for rule in one["alert_rule_test"] if rule.get("exp_alerts")}  # fmt: skip

    assert tested == {rule["alert"] for rule in RULES}
    assert all({"summary", "action"} == rule["annotations"].keys() and rule["labels"]["severity"] for rule in RULES)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize("command", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_accepts_the_rules_and_their_tests(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
