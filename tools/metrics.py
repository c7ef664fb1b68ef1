"""The catalog of metrics agrees with the code that measures; the dashboard and the alert rules use metrics that exist."""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from scheduler.process import measures
from scheduler.telemetry.catalog import CATALOG, Kind, Origin
from tools.sources import PRODUCT, check, differences, modules, read

KINDS = {"count": Kind.COUNTER, "observe": Kind.TIMER, "timed": Kind.TIMER, "gauge": Kind.GAUGE}
#: Metrics of a process that it measures without a call of `measures`.
OWN = {"paceline.health", "paceline.database_up", "paceline.series_dropped", "paceline.statsd_dropped"}
#: The files that read the metrics of events and of the database.
READ_IN = {Origin.EVENTS: "scheduler/telemetry/event_metrics.py", Origin.DATABASE: "scheduler/store/read/gauges.py"}
#: Metrics whose names are made from a state.
BY_STATE = {f"dagrun.duration.{state}" for state in ("success", "failed")} | {
    f"ti.{state}" for state in ("scheduled", "queued", "running", "deferred")
}
SUFFIXES = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.TIMER: ("_bucket", "_sum", "_count")}


def measured() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Each call of a function of measures, also by a callback: its function, the metric and the labels."""
    for tree in modules(*PRODUCT).values():
        for node in ast.walk(tree):
            words = [node.func, *node.args] if isinstance(node, ast.Call) else []
            at = next((number for number, word in enumerate(words[:-1]) if ast.unparse(word).startswith("measures.")), None)
            if isinstance(node, ast.Call) and at is not None:
                labels = frozenset(keyword.arg or "" for keyword in node.keywords)
                for one in ast.walk(words[at + 1]):
                    if isinstance(one, ast.Constant):
                        yield ast.unparse(words[at]).partition(".")[2], str(one.value), labels


@check
def measurements_are_in_the_catalog_with_type_and_labels() -> Iterator[str]:
    """And each metric of a process is measured, and each metric of events and of the database is read."""
    for function, name, labels in measured():
        if not hasattr(measures, function):
            yield f"measures has no function {function}"
        known = CATALOG.get(name)
        if (
            function in KINDS
            and name != "error"
            and (known is None or (known.kind, frozenset(known.labels)) != (KINDS[function], labels))
        ):
            yield f"measures.{function}({name!r}) has another type or other labels than the catalog, or is not in it"
    called = {name for _, name, _ in measured()}
    of_processes = {metric.name for metric in CATALOG.values() if metric.origin is Origin.PROCESS}
    yield from differences(of_processes - called, OWN, "measure it, or take it out of the catalog")
    unread = {
        metric.name
        for metric in CATALOG.values()
        if metric.origin in READ_IN and not re.search(rf"([\"']){re.escape(metric.name)}\1", read(READ_IN[metric.origin]))
    }
    yield from differences(unread, BY_STATE, "read it, or take it out of the catalog")


def expressions() -> list[str]:
    """The expressions of the dashboard and of the alert rules."""
    dashboard = json.loads(read("deploy/monitoring/grafana.json"))
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])] + [
        rule["expr"] for rule in rules()
    ]


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    found: list[dict[str, Any]] = yaml.safe_load(read("deploy/monitoring/alerts.yml"))["groups"][0]["rules"]
    return found


@check
def expressions_use_metrics_and_labels_that_exist() -> Iterator[str]:
    """Each series of Prometheus has the labels of its metric."""
    series = {"process_resident_memory_bytes": {"job"}, "process_cpu_seconds_total": {"job"}}
    for metric in CATALOG.values():
        names = {metric.prometheus("airflow") + suffix for suffix in SUFFIXES[metric.kind]}
        series |= {name: {*metric.labels, "le", "instance", "job"} for name in names}
    for expression in expressions():
        used = set(re.findall(r"\b(?:airflow|paceline|celery|process)_[a-z_]+", re.sub(r'"[^"]*"', "", expression)))
        labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression))
        labels |= {name for names in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for name in names.split(", ")}
        known = set[str]().union(*(series[name] for name in used & series.keys()))
        if not used or used - series.keys() or labels - known:
            yield f"a metric or a label does not exist: {expression}"


@check
def panels_have_their_own_place_and_alerts_a_test_and_a_remedy() -> Iterator[str]:
    """deploy/monitoring is in order."""
    panels = json.loads(read("deploy/monitoring/grafana.json"))["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    if not len(places) == len({panel["id"] for panel in panels}) == len(panels):
        yield "two panels have the same place or ID"
    yield from (f"panel {one['id']} is too wide" for one in panels if one["gridPos"]["x"] + one["gridPos"]["w"] > 24)
    tests = yaml.safe_load(read("deploy/monitoring/alerts_test.yml"))["tests"]
    tested = {rule["alertname"] for one in tests for rule in one["alert_rule_test"] if rule.get("exp_alerts")}
    yield from differences({rule["alert"] for rule in rules()}, tested, "test it in deploy/monitoring/alerts_test.yml")
    for rule in rules():
        if rule["annotations"].keys() != {"summary", "action"} or not rule["labels"]["severity"]:
            yield f"alert {rule['alert']} has no summary, action or severity"
