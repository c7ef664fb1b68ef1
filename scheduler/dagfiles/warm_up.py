"""A DAG file that the fork server parses before it forks, so that its children inherit the caches that Python fills."""

from datetime import UTC, datetime, timedelta

from paceline import DAG, task
from paceline.operators import BashOperator, EmptyOperator, PythonOperator

with DAG(
    "warm_up",
    schedule="0 6 * * *",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
    tags=["warm"],
) as dag:

    @task
    def extract() -> list[int]:
        return [1]

    @task
    def load(rows: list[int]) -> int:
        return len(rows)

    start, end = EmptyOperator(task_id="start"), BashOperator(task_id="end", bash_command="echo {{ ds }}")
    start >> PythonOperator(task_id="call", python_callable=len, op_args=["{{ ds }}"]) >> load(extract()) >> end
