"""The StatsD mapping of Airflow's Helm chart."""

import re
from collections.abc import Collection

#: The rules of statsd_exporter in Airflow's Helm chart, chart/files/statsd-mappings.yml of apache/airflow: `*` is one part.
CHART = (
    "airflow.dagrun.dependency-check.*.*", "airflow.operator_successes_(.*)", "airflow.operator_failures_(.*)",
    "airflow.scheduler_heartbeat", "airflow.dag.*.*.duration", "airflow.dagrun.duration.success.*",
    "airflow.dagrun.duration.failed.*", "airflow.dagrun.schedule_delay.*", "airflow.dag_processing.last_runtime.*",
    "airflow.dag_processing.last_run.seconds_ago.*", "airflow.pool.open_slots.*", "airflow.pool.used_slots.*",
    "airflow.pool.starving_tasks.*", "airflow.executor.open_slots.*", "airflow.executor.queued_tasks.*",
    "airflow.executor.running_tasks.*",
)  # fmt: skip


def empty(names: Collection[str]) -> list[str]:
    """The rules to which none of these names of StatsD belongs."""
    return [rule for rule in CHART if not any(re.fullmatch(_pattern(rule), name) for name in names)]


def _pattern(rule: str) -> str:
    return rule if "(" in rule else rule.replace(".", r"\.").replace("*", "[^.]+")
