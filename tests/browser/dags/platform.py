"""Other DAGs of an installation: wide, waiting, failing, branching, scheduled by assets."""

import random
import time
from datetime import UTC, datetime, timedelta

from paceline import DAG, Asset, task, task_group
from paceline.operators import BashOperator, EmptyOperator

START = datetime(2026, 1, 1, tzinfo=UTC)
REPORTS = Asset("s3://shop/reports")

with DAG(
    "features", schedule="*/30 * * * *", start_date=START, tags=["ml"], description="Features of the recommendation model"
) as features:

    @task
    def snapshot():
        return 1

    @task
    def train():
        time.sleep(0.2)

    first, last = snapshot(), train()
    for name in ("user", "item", "session", "price"):

        @task_group(group_id=name)
        def group(name=name):
            @task
            def base():
                time.sleep(random.random() / 10)

            @task
            def embed(number):
                time.sleep(random.random() / 6)

            @task
            def join():
                if name == "price" and random.random() < 0.3:
                    raise RuntimeError("The price table has no partition for this hour")

            made, end = base(), join()
            for number in range(5):
                made >> embed.override(task_id=f"embed_{number}")(number) >> end
            return made, end

        made, end = group()
        first >> made
        end >> last

with DAG("inventory", schedule="0 * * * *", start_date=START, tags=["sales"], description="Stock of all warehouses") as inventory:
    fetch = BashOperator(task_id="fetch", bash_command="sleep 0.1; echo fetched {{ ds }}", outlets=[REPORTS])
    count = BashOperator(task_id="count", bash_command="for i in 1 2 3; do echo shelf $i; done")
    fetch >> count >> EmptyOperator(task_id="done")

with DAG(
    "exchange_rates", schedule="@daily", start_date=START, tags=["finance"], description="Rates of the central bank"
) as exchange_rates:

    @task
    def fetch_rates():
        time.sleep(random.random() / 5)
        if random.random() < 0.06:
            raise ConnectionError("The central bank has published no rates for this day yet")

    @task
    def convert():
        time.sleep(random.random() / 8)

    fetch_rates() >> convert()

with DAG("ledger", schedule="@daily", start_date=START, tags=["finance", "core"], description="Bookings of the day") as ledger:

    @task
    def close_books():
        raise RuntimeError("Account 4711 does not balance: debit 1,204.50, credit 1,240.50")

    @task
    def export():
        pass

    close_books() >> export()

with DAG("thumbnails", schedule=None, start_date=START, tags=["media"], description="One task for each picture") as thumbnails:

    @task
    def pictures():
        return list(range(60))

    @task(pool="gpu")
    def shrink(number):
        time.sleep(0.05)

    shrink.expand(number=pictures())

with DAG(
    "digest", schedule=[REPORTS], start_date=START, tags=["sales"], description="Sends a digest when the reports change"
) as digest:
    EmptyOperator(task_id="send")

with DAG(
    "long_import", schedule=None, start_date=START, tags=["core"], description="Runs for minutes, and prints each second"
) as long_import:

    @task
    def stream():
        for number in range(600):
            print(f"chunk {number}: {random.randint(1000, 9999)} rows", flush=True)
            time.sleep(1)

    @task(pool="gpu")
    def index():
        time.sleep(300)

    stream() >> EmptyOperator(task_id="finish")
    for number in range(4):
        index.override(task_id=f"index_{number}")()

with DAG(
    "archive",
    schedule=timedelta(days=7),
    start_date=START,
    is_paused_upon_creation=True,
    tags=["core"],
    description="Moves old partitions to cold storage",
) as archive:
    EmptyOperator(task_id="move")
