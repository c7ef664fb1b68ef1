"""A typical DAG of a shop: groups, a mapped task, a task that needs a second try, and params for its form."""

import random
import time
from datetime import UTC, datetime, timedelta

from paceline import DAG, Param, get_current_context, task, task_group

REGIONS = ["eu-west", "eu-north", "us-east", "us-west", "ap-south"]

with DAG(
    "orders",
    description="Orders of all shops, from their files to the daily report",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    tags=["sales", "core"],
    max_active_runs=8,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=1)},
    params={
        "region": Param("all", enum=["all", *REGIONS], title="Region", description="Limit the run to one region."),
        "limit": Param(1000, type="integer", minimum=1, description="Rows of each file."),
        "full": Param(False, type="boolean", title="Full reload", description="Ignore what earlier runs loaded."),
        "since": Param(None, type=["null", "string"], format="date", title="Since"),
        "labels": Param({"team": "sales"}, type="object", description="Stored with the report."),
    },
) as orders:

    @task
    def list_files():
        print("\x1b[36mlisting\x1b[0m s3://shop/orders/")
        for region in REGIONS:
            print(f"found {random.randint(3, 90)} files of {region}")
        return REGIONS

    @task_group
    def extract():
        @task
        def customers():
            time.sleep(random.random() / 5)
            return 1800

        @task
        def products():
            time.sleep(random.random() / 8)
            return 240

        return [customers(), products()]

    @task(map_index_template="{{ region }}")
    def load(region):
        context = get_current_context()
        context["region"] = region
        for number in range(40):
            level = "\x1b[33mWARN\x1b[0m " if number % 13 == 7 else "\x1b[32mINFO\x1b[0m "
            print(f"{level} {region}: batch {number:03d} has {random.randint(800, 1200)} rows, {random.random():.3f} s")
        time.sleep(random.random() / 3)
        return random.randint(1, 9) * 1000

    @task_group
    def transform():
        @task
        def clean(rows):
            time.sleep(random.random() / 4)
            return sum(rows)

        @task
        def deduplicate(rows):
            if random.random() < 0.2 and get_current_context()["ti"].try_number == 1:
                print("\x1b[31mERROR\x1b[0m connection to the lookup service reset by peer")
                raise ConnectionResetError("lookup.shop.internal:443 reset the connection")
            time.sleep(random.random() / 3)
            return rows

        @task_group
        def enrich():
            @task
            def currency(rows):
                time.sleep(random.random() / 4)
                return rows

            @task
            def geography(rows):
                time.sleep(random.random() / 2)
                return rows

            return currency, geography

        cleaned = deduplicate(clean(load.expand(region=list_files())))
        currency, geography = enrich()
        return [currency(cleaned), geography(cleaned)]

    @task
    def check(parts):
        if random.random() < 0.12:
            raise ValueError("Revenue of us-west fell by 83 % against the week before: 12,904.20 instead of 75,812.00")
        return True

    @task
    def publish(ok):
        time.sleep(random.random() / 5)
        return {"report": "s3://shop/reports/daily.html", "rows": random.randint(8000, 12000), "regions": REGIONS}

    publish(check([*transform(), *extract()]))
