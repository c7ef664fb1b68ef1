"""Every trigger rule below tasks that succeed, fail and are skipped."""

from datetime import UTC, datetime

from airflow.exceptions import AirflowSkipException
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, TriggerRule


def fail():
    raise ValueError("as planned")


def skip():
    raise AirflowSkipException("as planned")


RULES = [
    TriggerRule.ALL_SUCCESS,
    TriggerRule.ALL_FAILED,
    TriggerRule.ALL_DONE,
    TriggerRule.ALL_SKIPPED,
    TriggerRule.ONE_SUCCESS,
    TriggerRule.ONE_FAILED,
    TriggerRule.ONE_DONE,
    TriggerRule.NONE_FAILED,
    TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS,
    TriggerRule.NONE_SKIPPED,
    TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
    TriggerRule.ALWAYS,
]

with DAG("trigger_rules", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False, max_active_tasks=50):
    good = EmptyOperator(task_id="good")
    bad = PythonOperator(task_id="bad", python_callable=fail)
    skipped = PythonOperator(task_id="skipped", python_callable=skip)
    below_bad = EmptyOperator(task_id="below_bad")
    bad >> below_bad

    for above in ([good], [bad], [skipped], [good, bad], [good, skipped], [below_bad]):
        for rule in RULES:
            name = "_and_".join(one.task_id for one in above)
            above >> EmptyOperator(task_id=f"{name}__{rule.value}", trigger_rule=rule)
