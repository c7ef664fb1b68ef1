"""The catalog of metrics agrees with the code that measures, and with the names that dashboards of Airflow use."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support import airflow_chart

from scheduler.process import measures
from scheduler.telemetry.catalog import AIRFLOW, CATALOG, CELERY, Kind, Origin

ROOT = Path(__file__).parents[3]
#: Of danihodovic/celery-exporter, without celery_task_rejected: Paceline's workers reject no message of ours.
EXPORTER = {
    "celery_task_sent", "celery_task_received", "celery_task_started", "celery_task_succeeded", "celery_task_failed",
    "celery_task_retried", "celery_task_revoked", "celery_task_runtime", "celery_worker_up", "celery_worker_tasks_active",
    "celery_queue_length", "celery_active_consumer_count", "celery_active_worker_count", "celery_active_process_count",
}  # fmt: skip


@cache
def measured() -> list[tuple[str, str, frozenset[str]]]:
    """Each call of a function of measures: its function, the metric and the labels."""
    return list(_calls())


def _calls() -> Iterator[tuple[str, str, frozenset[str]]]:
    for folder in ("paceline", "scheduler", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if not isinstance(node.func.value, ast.Name) or node.func.value.id != "measures" or not node.args:
                    continue
                labels = frozenset(keyword.arg or "" for keyword in node.keywords)
                for name in [one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)]:
                    yield node.func.attr, str(name), labels


def test_measurements_of_processes_are_in_the_catalog_with_type_and_labels() -> None:
    kinds = {"count": Kind.COUNTER, "observe": Kind.TIMER, "timed": Kind.TIMER, "gauge": Kind.GAUGE}
    found = [call for call in measured() if call[0] in kinds and call[1] not in {"error"}]
    assert len(found) > 20, "the check no longer finds the calls"
    assert all(hasattr(measures, name) for name in kinds)

    wrong = [
        (function, name, labels)
        for function, name, labels in found
        if name not in CATALOG or CATALOG[name].kind is not kinds[function] or set(CATALOG[name].labels) != labels
    ]
    assert wrong == []


def test_each_metric_of_a_process_is_measured_somewhere() -> None:
    called = {name for _, name, _ in measured()}
    own = {"paceline.health", "paceline.database_up", "paceline.series_dropped", "paceline.statsd_dropped"}

    assert {metric.name for metric in CATALOG.values() if metric.origin is Origin.PROCESS} - called == own


def test_each_metric_of_events_and_of_the_database_is_read_somewhere() -> None:
    events = (ROOT / "scheduler" / "telemetry" / "event_metrics.py").read_text()
    database = (ROOT / "scheduler" / "store" / "read" / "gauges.py").read_text()
    texts = {Origin.EVENTS: events, Origin.DATABASE: database}
    by_state = {f"dagrun.duration.{state}" for state in ("success", "failed")} | {
        f"ti.{state}" for state in ("scheduled", "queued", "running", "deferred")
    }

    missing = [
        metric.name
        for metric in CATALOG.values()
        if metric.origin in texts
        and f'"{metric.name}"' not in texts[metric.origin]
        and f"'{metric.name}'" not in texts[metric.origin]
    ]
    assert set(missing) == by_state


def test_there_are_at_least_55_metrics_of_airflow() -> None:
    assert len({metric.name for metric in AIRFLOW}) >= 55


def test_the_metrics_of_the_celery_exporter_are_there() -> None:
    assert {metric.name for metric in CELERY} == EXPORTER


def test_no_two_metrics_have_the_same_name_in_prometheus_or_statsd() -> None:
    families = Counter(metric.prometheus("airflow") for metric in CATALOG.values())
    dotted = Counter(name for metric in CATALOG.values() for name in metric.dotted)

    assert [name for name, times in (families + dotted).items() if times > 1] == []
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) for name in families)


def test_a_dotted_name_has_only_labels_of_its_metric() -> None:
    wrong = [
        (metric.name, name)
        for metric in CATALOG.values()
        for name in metric.dotted
        if not set(re.findall(r"\{(\w+)\}", name)) <= set(metric.labels)
    ]

    assert wrong == []


def test_each_rule_of_airflows_helm_chart_has_a_metric() -> None:
    names = [f"airflow.{re.sub(r'{[a-z_]+}', 'x', dotted)}" for metric in AIRFLOW for dotted in metric.dotted]

    assert airflow_chart.empty(names) == []
