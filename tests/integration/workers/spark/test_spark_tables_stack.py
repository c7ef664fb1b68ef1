"""Tables of Spark tasks on a real stack: a warm session, an application of spark-submit, and what another task reads after them."""

import contextlib
import os
from pathlib import Path

import pytest
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.settings import Settings
from scheduler.store.db import database

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.long]

#: A folder with the jar of Iceberg for the installed Spark.
JARS = "PACELINE_TEST_ICEBERG_JARS"
DAG = """
from paceline import dag, task
from paceline.operators import SparkSubmitOperator

@dag(schedule=None)
def lake():
    @task.pyspark(retries=1, retry_delay=0)
    def write(spark, ti=None):
        spark.sql("create namespace if not exists sales")
        spark.range(3).write.saveAsTable("sales.orders")
        if ti.try_number == 1:
            raise RuntimeError("one of two tables is written")
        spark.sql("create table sales.sums as select count(*) as n from sales.orders")

    submit = SparkSubmitOperator(task_id="submit", master="local[1]", application=APPLICATION)

    @task
    def read(ti=None):
        return {
            name: sorted(ti.catalog.load_table(f"sales.{name}").scan().to_arrow().to_pydict().popitem()[1])
            for name in ("orders", "sums")
        }

    write() >> submit >> read()

lake()
"""
APPLICATION = """
import os
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print("the token is", os.environ["PACELINE_TABLES_TOKEN"])
print("the conf is", spark.conf.get("spark.sql.catalog.lake.token"))
spark.sql("insert into sales.orders select 10 as id")
spark.sql("merge into sales.orders o using (select 1L as id) u on o.id = u.id when matched then delete")
"""


def test_a_session_and_an_application_publish_with_their_success(
    stack_factory: StackFactory, settings: Settings, tmp_path: Path
) -> None:
    if JARS not in os.environ:
        pytest.skip(f"No folder with the jar of Iceberg: name it in {JARS}, or run make test-tables.")
    application = tmp_path / "app.py"
    application.write_text(APPLICATION)
    stack = stack_factory(
        dags={"lake.py": DAG.replace("=APPLICATION", f"={str(application)!r}")},
        schedulers=1,
        workers=[("default,spark", 1)],
        env={"PACELINE_TABLES_WAREHOUSE": str(settings.home / "lake"), "PACELINE_TABLES_SPARK_JARS": os.environ[JARS]},
    )
    eventually(lambda: stack.cli("dags", "unpause", "lake").returncode == 0)
    done = stack.cli("dags", "trigger", "lake", "--run-id", "r", "--wait", timeout=240)
    logs = "\n".join(path.read_text() for path in settings.logs_folder.rglob("*.log"))

    assert done.returncode == 0, done.stdout + done.stderr + logs[-5000:]
    with contextlib.closing(database.connect(settings, "test")) as connection, connection.cursor() as cursor:
        cursor.execute("select value from xcom x join task_instance t on t.id = x.task_instance_id where task_id = 'read'")
        assert cursor.fetchall() == [({"orders": [0, 2, 10], "sums": [3]},)]
    assert "WARN AuthManagers" not in logs and "WARN OAuth2Manager" not in logs
    assert "the token is ***" in logs and "the conf is env:PACELINE_TABLES_TOKEN" in logs
