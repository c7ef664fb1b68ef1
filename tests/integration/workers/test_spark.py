"""PySpark tasks in a real worker with a real JVM."""

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.waiting import eventually

PIPELINE = """
import os, time
from datetime import timedelta

def jvm(spark):
    return [spark.sparkContext.applicationId, spark._jvm.java.lang.ProcessHandle.current().pid()]

def times_ten(value):
    return helper(value) * 10

def helper(value):
    return value + 0

@dag(schedule=None)
def d():
    @task.pyspark
    def first(spark, sc):
        from pyspark.sql.types import LongType
        from pyspark.sql.functions import udf, sum
        spark.range(5).createOrReplaceTempView("mine")
        spark._jvm.java.lang.System.out.println("said by the JVM")
        total = spark.table("mine").select(udf(times_ten, LongType())("id").alias("x")).agg(sum("x")).first()[0]
        conf = {key: spark.conf.get(key) for key in ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")}
        warehouse = spark.conf.get("spark.sql.warehouse.dir")
        return {"jvm": jvm(spark), "total": total, "conf": conf, "master": sc.master, "warehouse": warehouse}
    @task.pyspark
    def second(spark, before):
        from pyspark.sql import SparkSession
        assert SparkSession.builder.getOrCreate() is spark
        return {"jvm": jvm(spark), "views": [table.name for table in spark.catalog.listTables()]}
    @task.pyspark
    def stops(spark, before):
        spark.stop()
    @task.pyspark
    def fresh(spark, none):
        return {"jvm": jvm(spark), "count": spark.range(7).count()}
    @task.pyspark(execution_timeout=timedelta(seconds=1))
    def slow(spark, before):
        from pyspark.sql.types import LongType
        from pyspark.sql.functions import udf
        spark.range(1).select(udf(lambda x: time.sleep(60), LongType())("id")).collect()
    @task.pyspark(trigger_rule="all_done")
    def after(spark, none):
        return spark.range(3).count()
    one = first()
    two = second(one)
    after(slow(fresh(stops(two))))
d()
"""


@pytest.mark.spark
def test_a_warm_jvm_serves_each_task_with_a_session_of_its_own(bench: Any) -> None:
    worker = bench.worker(queues="default,spark")

    run = bench.run(PIPELINE, timeout_s=150)

    assert bench.scenario.states(run) == {
        "first": "success", "second": "success", "stops": "success", "fresh": "success", "slow": "failed", "after": "success",
    }  # fmt: skip
    values = dict(bench.scenario.rows("select t.task_id, x.value from xcom x join task_instance t on t.id = x.task_instance_id"))
    assert values["first"]["total"] == 100
    assert values["first"]["conf"] == {"spark.sql.shuffle.partitions": "4", "spark.sql.session.timeZone": "UTC"}
    assert values["first"]["master"] == "local[2]"
    assert str(bench.settings.home) in values["first"]["warehouse"]
    assert values["second"] == {"jvm": values["first"]["jvm"], "views": []}
    assert values["fresh"]["jvm"][0] != values["first"]["jvm"][0]
    assert values["fresh"]["count"] == 7
    assert "said by the JVM" in bench.log("first")
    assert "said by the JVM" not in worker.said
    assert "TaskTimeout" in bench.last_line("slow")

    left = psutil.Process(worker.process.pid).children(recursive=True)
    assert any("java" in process.name() for process in left)
    worker.signal(signal.SIGKILL)
    worker.process.wait()
    eventually(lambda: not any(psutil.pid_exists(process.pid) and process.status() != "zombie" for process in left))


@pytest.mark.parametrize("script", [None, "echo 'openjdk version \"11.0.2\"' >&2"])
def test_without_a_java_that_spark_can_use_the_task_fails_with_one_sentence(bench: Any, script: str | None) -> None:
    folder = bench.folder / "bin"
    folder.mkdir()
    if script:
        (folder / "java").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "java").chmod(0o755)
    bench.worker(queues="default,spark", PATH=str(folder), JAVA_HOME="")

    bench.run("""
        @dag(schedule=None)
        def d():
            @task.pyspark(retries=2)
            def t(spark):
                return spark.range(1).count()
            t()
        d()
    """)

    assert bench.scenario.states() == {"t": "failed"}
    assert bench.column("t", "try_number") == 1
    assert "install Java 17 or newer" in bench.last_line("t")
    assert ("version 11" in bench.last_line("t")) == bool(script)
    assert not list(Path(bench.settings.home).glob("warehouse/*"))
