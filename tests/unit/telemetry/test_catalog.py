"""The catalog of metrics agrees with the names that dashboards of Airflow use, and promtool accepts the alert rules."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from support import airflow_chart

from scheduler.telemetry.catalog import AIRFLOW, CATALOG, CELERY

#: Of danihodovic/celery-exporter, without celery_task_rejected: Paceline's workers reject no message of ours.
EXPORTER = {
    "celery_task_sent", "celery_task_received", "celery_task_started", "celery_task_succeeded", "celery_task_failed",
    "celery_task_retried", "celery_task_revoked", "celery_task_runtime", "celery_worker_up", "celery_worker_tasks_active",
    "celery_queue_length", "celery_active_consumer_count", "celery_active_worker_count", "celery_active_process_count",
}  # fmt: skip


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


FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"
PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize("command", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_accepts_the_rules_and_their_tests(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
