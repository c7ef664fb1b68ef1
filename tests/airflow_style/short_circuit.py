"""Short circuits with and without the trigger rules below them, and latest only."""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.latest_only import LatestOnlyOperator
from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG, chain, task

with DAG("short_circuit", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False):

    @task.short_circuit
    def goes_on():
        return "something"

    @task.short_circuit()
    def stops():
        return []

    goes_on() >> EmptyOperator(task_id="reached")

    cleanup = EmptyOperator(task_id="cleanup", trigger_rule="all_done")
    chain(stops(), EmptyOperator(task_id="near"), EmptyOperator(task_id="far"), cleanup)

    # Only direct downstream tasks are skipped; further down, the trigger rules decide.
    polite = ShortCircuitOperator(task_id="polite", python_callable=lambda: False, ignore_downstream_trigger_rules=False)
    chain(
        polite,
        EmptyOperator(task_id="polite_near"),
        EmptyOperator(task_id="polite_far"),
        EmptyOperator(task_id="polite_cleanup", trigger_rule="all_done"),
    )

    @task
    def beside():
        return 1

    # A short circuit also skips a join whose other side succeeded.
    joined = EmptyOperator(task_id="joined")
    [beside(), stops.override(task_id="stops_too")()] >> joined

    latest = LatestOnlyOperator(task_id="latest")
    latest >> EmptyOperator(task_id="behind_latest")
