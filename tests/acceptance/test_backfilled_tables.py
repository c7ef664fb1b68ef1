"""Thirty dates backfilled by several workers, each twice, leave the tables of one serial run."""

from datetime import date, timedelta

import pytest
from pyiceberg.catalog import load_catalog
from support.stacks import Stack, StackFactory
from support.waiting import eventually

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(2000)]

FIRST, DATES = date(2026, 1, 1), 30
DAG = """
from datetime import datetime, timedelta

from paceline import DAG, task
from paceline.operators import SQLExecuteQueryOperator
from paceline.quality import expect
from paceline.tables import merge, overwrite_by_logical_date

LOG = "insert into sales.log select day, sum(amount)::bigint as total from sales.days where day = :day group by 1"
# Two runs that write one table: the second one to report is tried again on the newer table.
OFTEN = {"retries": 60, "retry_delay": timedelta(seconds=0.2)}

with DAG("shop", schedule="@daily", start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 30), catchup=False,
         default_args=OFTEN):

    @task
    def load(logical_date):
        import pandas

        day = logical_date.date()
        rows = pandas.DataFrame({"day": [day] * 3, "amount": [day.day * 10 + n for n in range(3)]})
        overwrite_by_logical_date("sales.days", rows, "day")
        merge("sales.newest", pandas.DataFrame({"weekday": [day.weekday()], "month": [day.month]}), "weekday")

    load() >> SQLExecuteQueryOperator(
        task_id="log", sql=LOG, parameters={"day": "{{ logical_date.date() }}"}, write="append_once",
        checks=[expect("sales.log").unique("day")],
    )

with DAG("make", schedule=None):
    SQLExecuteQueryOperator(task_id="tables", sql="create table if not exists sales.log (day date, total bigint)")
"""


def backfill(stack: Stack) -> None:
    last = FIRST + timedelta(days=DATES - 1)
    made = stack.json(
        "backfill", "create", "shop", "--from", FIRST.isoformat(), "--to", last.isoformat(), "--max-active-runs", "6",
        "--reprocess", "completed",
    )  # fmt: skip
    number = str(made["id"])
    eventually(lambda: stack.json("backfill", "show", number)["state"] == "completed", timeout=900, interval=1)


def test_dates_that_are_backfilled_twice_are_in_the_tables_once(stack_factory: StackFactory) -> None:
    warehouse = stack_factory.settings.home / "lake"
    stack = stack_factory(
        {"shop.py": DAG}, schedulers=1, workers=[("default", 2), ("default", 2)], env={"PACELINE_TABLES_WAREHOUSE": str(warehouse)}
    )
    eventually(lambda: {one["dag_id"] for one in stack.json("dags", "list")} == {"shop", "make"}, timeout=60)
    assert stack.cli("dags", "trigger", "make", "--wait", "--timeout", "60").returncode == 0
    for _ in range(2):
        backfill(stack)
    states = {run["state"] for run in stack.json("runs", "list", "--dag", "shop", "--limit", "100")}
    assert states == {"success"}

    catalog = load_catalog(
        "lake",
        type="sql",
        uri=stack.settings.database.url.replace("postgresql://", "postgresql+psycopg2://"),
        warehouse=str(warehouse),
    )
    days = sorted(tuple(row.values()) for row in catalog.load_table("sales.days").scan().to_arrow().to_pylist())
    log = sorted((row["day"], row["total"]) for row in catalog.load_table("sales.log").scan().to_arrow().to_pylist())
    dates = [FIRST + timedelta(days=n) for n in range(DATES)]
    assert days == [(day, day.day * 10 + n) for day in dates for n in range(3)]
    assert log == [(day, day.day * 30 + 3) for day in dates]
    assert catalog.load_table("sales.newest").scan().to_arrow().num_rows == min(DATES, 7)
