/** A first DAG, which an empty list of DAGs shows. */
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
