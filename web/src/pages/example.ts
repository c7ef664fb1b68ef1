/** DAG files that empty lists show, to be copied into the DAGs folder. */
export const EXAMPLE = `from datetime import UTC, datetime

from paceline import dag, task


@task
def extract():
    return {"apples": 3, "pears": 5}


@task(retries=2)
def total(stock):
    print(f"{sum(stock.values())} pieces")


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC))
def hello():
    total(extract())


hello()
`
/** One DAG updates an asset, and that starts the other one. */
export const ASSET = `from paceline import DAG, Asset, task

stock = Asset("s3://shop/stock.csv")

with DAG("count_stock", schedule="@daily"):

    @task(outlets=[stock])
    def count():
        print("counted")

    count()

with DAG("order_more", schedule=[stock]):

    @task
    def order():
        print("ordered")

    order()
`
export const QUESTION = `from paceline import DAG
from paceline.operators.hitl import ApprovalOperator

with DAG("release", schedule=None):
    ApprovalOperator(task_id="ask", subject="Publish the report?")
`
