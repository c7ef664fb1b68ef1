"""Decorated functions that pass their results on: @dag, @task, multiple_outputs, override, an asset as outlet and as schedule."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import Asset, dag, get_current_context, task

ORDERS = Asset("file:///orders.csv")


@dag(
    dag_id="taskflow",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=1)},
    tags=["orders"],
)
def pipeline():
    @task
    def extract() -> dict:
        return {"1001": 301.27, "1002": 433.21, "1003": 502.22}

    @task(multiple_outputs=True)
    def summarize(orders: dict) -> dict:
        return {"total": sum(orders.values()), "count": len(orders)}

    @task
    def check(total: float, count: int, at_least: float) -> float:
        assert count == 3
        assert round(total, 2) == 1236.7
        assert total > at_least
        return total

    @task(retries=0, outlets=[ORDERS])
    def store(total: float) -> str:
        context = get_current_context()
        assert context["ti"].task_id == "store"
        return f"{context['run_id']}: {total:.2f}"

    @task
    def explain(ti=None, **context):
        assert ti.xcom_pull(task_ids="extract")["1001"] == 301.27
        assert ti.xcom_pull(task_ids="summarize", key="count") == 3
        assert context["dag"].dag_id == "taskflow"

    summary = summarize(extract())
    totals = [
        check.override(task_id=f"check_{limit}")(total=summary["total"], count=summary["count"], at_least=limit)
        for limit in (0, 100)
    ]
    store(totals[0]) >> explain()


pipeline()


@dag(dag_id="taskflow_report", schedule=[ORDERS], start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False)
def report():
    @task
    def write(dag_run=None):
        assert dag_run.run_type == "asset_triggered"

    write()


report()
