"""PySpark tasks in a real worker with a real JVM."""

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import is_running
from support.spark_state import kept
from support.waiting import eventually

PIPELINE = """
import os, time
from datetime import timedelta
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType

def jvm(spark):
    return [spark.sparkContext.applicationId, spark._jvm.java.lang.ProcessHandle.current().pid()]

def times_ten(value):
    return helper(value) * 10

def helper(value):
    return value + 0

@udf(LongType())
def plus_one(value):
    return value + 1

def used(spark):
    return spark.range(3).select(plus_one("id").alias("x")).agg({"x": "sum"}).first()[0]

@dag(schedule=None)
def d():
    @task.pyspark
    def first(spark, sc):
        from pyspark.sql.functions import sum
        spark.range(5).createOrReplaceTempView("mine")
        spark._jvm.java.lang.System.out.println("said by the JVM")
        total = spark.table("mine").select(udf(times_ten, LongType())("id").alias("x")).agg(sum("x")).first()[0]
        conf = {key: spark.conf.get(key) for key in ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")}
        warehouse = spark.conf.get("spark.sql.warehouse.dir")
        group = sc.getLocalProperty("spark.jobGroup.id")
        found = {"total": total, "conf": conf, "master": sc.master, "warehouse": warehouse, "group": group}
        return found | {"jvm": jvm(spark), "used": used(spark)}
    @task.pyspark(conf={"spark.sql.shuffle.partitions": 9})
    def second(spark, before):
        from pyspark.sql import SparkSession
        assert SparkSession.builder.getOrCreate() is SparkSession.getActiveSession() is spark
        views = [table.name for table in spark.catalog.listTables() if table.isTemporary]
        return {"jvm": jvm(spark), "views": views, "partitions": spark.conf.get("spark.sql.shuffle.partitions")}
    @task.pyspark(warm=False, conf={"spark.driver.memory": "600m", "spark.hadoop.mine": "a secret"})
    def cold(spark, before):
        command = open(f"/proc/{jvm(spark)[1]}/cmdline").read()
        return {"jvm": jvm(spark), "used": used(spark), "memory": "-Xmx600m" in command, "told": "a secret" in command}
    @task.pyspark
    def stops(spark, before):
        assert used(spark) == 6
        spark.stop()
        return jvm_of_stopped(spark)
    def jvm_of_stopped(spark):
        return spark._jvm.java.lang.ProcessHandle.current().pid()
    @task.pyspark
    def fresh(spark, pid):
        return {"jvm": jvm(spark), "before": pid, "count": spark.range(7).count()}
    @task.pyspark(execution_timeout=timedelta(seconds=2))
    def slow(spark, before):
        spark.range(1).select(udf(lambda x: time.sleep(60), LongType())("id")).collect()
    @task.pyspark(trigger_rule="all_done", warm=False)
    def wrong(spark, none):
        spark.sql("select nope from values (1) as t(x)")
    @task.pyspark(trigger_rule="all_done")
    def after(spark, none):
        return {"jvm": jvm(spark), "count": spark.range(3).count()}
    after(wrong(slow(fresh(stops(cold(second(first())))))))
d()
"""


@pytest.fixture(scope="module")
def worker_options() -> dict[str, Any]:
    return {"queues": "default,spark", "PACELINE_SPARK_SUBMIT_TIMEOUT": "1"}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_warm_jvm_serves_each_task_with_a_session_of_its_own(bench: Any) -> None:
    worker = bench.worker(queues="default,spark")

    run = bench.run(PIPELINE, timeout_s=400)

    assert bench.scenario.states(run) == {
        "first": "success", "second": "success", "cold": "success", "stops": "success", "fresh": "success", "slow": "failed",
        "wrong": "failed", "after": "success",
    }  # fmt: skip
    values = dict(bench.scenario.rows("select t.task_id, x.value from xcom x join task_instance t on t.id = x.task_instance_id"))
    application, pid = values["first"]["jvm"]
    assert (values["first"]["total"], values["first"]["used"]) == (100, 6)
    assert values["first"]["conf"] == {"spark.sql.shuffle.partitions": "4", "spark.sql.session.timeZone": "UTC"}
    assert values["first"]["master"] == "local[2]"
    assert values["first"]["group"] == "d.first r1"
    assert "/paceline-jvm-" in values["first"]["warehouse"]
    assert values["second"] == {"jvm": [application, pid], "views": [], "partitions": "9"}

    assert values["cold"]["jvm"][1] != pid
    assert not psutil.pid_exists(values["cold"]["jvm"][1])
    assert (values["cold"]["used"], values["cold"]["memory"], values["cold"]["told"]) == (6, True, False)

    assert values["stops"] == pid
    assert values["fresh"]["jvm"][0] != application and values["fresh"]["jvm"][1] == pid
    assert values["fresh"]["count"] == 7
    assert "said by the JVM" in bench.log("first")
    assert "said by the JVM" not in worker.output

    assert "TaskTimeout" in bench.last_line("slow")
    assert kept(values["fresh"]["jvm"], values["after"]["jvm"], worker.output), worker.output
    reason = bench.column("wrong", "reason")
    assert reason.startswith("AnalysisException: [UNRESOLVED_COLUMN")
    assert 'spark.sql("select nope' in reason
    assert reason in bench.last_line("wrong")
    assert "Traceback" in bench.log("wrong")

    left = psutil.Process(worker.process.pid).children(recursive=True)
    assert any("java" in process.name() for process in left)
    worker.signal(signal.SIGKILL)
    worker.process.wait()
    eventually(lambda: not any(map(is_running, left)))


LOSES_AN_EXECUTOR = """
import os, signal, time

CLUSTER = {
    "spark.master": "local-cluster[1,1,512]", "spark.driver.memory": "512m", "spark.executor.memory": "512m",
    "spark.hadoop.mine": "x",
}

@dag(schedule=None)
def d():
    @task.pyspark(conf=CLUSTER)
    def goes_on(spark, sc):
        import psutil
        marker = os.path.join(os.environ["PACELINE_HOME"], "killed")
        def kill(rows):
            if not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
            time.sleep(1.5)
            return rows
        return sc.parallelize(range(6), 2).mapPartitions(kill).count()
    @task.pyspark(conf=CLUSTER | {"spark.task.maxFailures": 1, "spark.sql.shuffle.partitions": 3})
    def gives_up(spark, before):
        import psutil
        def kill(rows):
            os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
            return rows
        spark.sparkContext.parallelize(range(2), 1).mapPartitions(kill).count()
    gives_up(goes_on())
d()
"""


@pytest.mark.on_demand
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_an_executor_that_is_killed_mid_stage_is_replaced_and_counted(bench: Any) -> None:
    bench.worker(queues="default,spark")

    run = bench.run(LOSES_AN_EXECUTOR, timeout_s=400)

    assert bench.scenario.states(run) == {"goes_on": "success", "gives_up": "failed"}
    progress = dict(
        bench.scenario.rows("select t.task_id, p.progress from task_progress p join task_instance t on t.id = p.task_instance_id")
    )
    assert (progress["goes_on"]["tasks_done"], progress["goes_on"]["tasks"]) == (2, 2)
    assert progress["goes_on"]["failed_executors"] == 1
    reason = bench.column("gives_up", "reason")
    assert reason.startswith("Executor 0 was lost: Command exited with code 137")
    assert "raise spark.executor.memoryOverhead" in bench.last_line("gives_up")


@pytest.mark.parametrize("script", [None, "echo 'openjdk version \"11.0.2\"' >&2"])
def test_without_a_java_that_spark_can_use_the_task_fails_with_one_sentence(bench: Any, script: str | None) -> None:
    folder = bench.folder / "bin"
    folder.mkdir()
    if script:
        (folder / "java").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "java").chmod(0o755)
    bench.worker(queues="default,spark", PATH=str(folder), JAVA_HOME="")

    bench.run(f"""
        @dag(schedule=None)
        def d():
            @task.pyspark(retries=2)
            def t(spark):
                return spark.range(1).count()
            t()
            SparkSubmitOperator(task_id="s", application={__file__!r}, master="local[1]", retries=2)
            SparkSqlOperator(task_id="q", sql="select 1", master="local[1]", retries=2)
        d()
    """)

    assert bench.scenario.states() == {"t": "failed", "s": "failed", "q": "failed"}
    for task_id in ("t", "s", "q"):
        assert bench.column(task_id, "try_number") == 1
        assert "install Java 17 or newer" in bench.last_line(task_id)
        assert ("version 11" in bench.last_line(task_id)) == bool(script)
    assert not list(Path(bench.settings.home).glob("warehouse/*"))


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"driver.memory": "1g"}, "'driver.memory' does not start with spark., so Spark would ignore it: correct the key."),
        ({"spark.driver.memory": "lots"}, "The conf spark.driver.memory cannot be 'lots': write a size such as 512m or 4g."),
        (
            {"spark.driver.extraJavaOptions": "-Xmx1g"},
            "exit code 1: Not allowed to specify max heap",
        ),
    ],
)
def test_a_conf_that_no_jvm_accepts_is_one_sentence(shared_bench: Any, conf: dict[str, str], words: str) -> None:
    shared_bench.run(f"""
        @dag(schedule=None)
        def d():
            @task.pyspark(conf={conf!r})
            def t(spark):
                return spark.range(1).count()
            t()
        d()
    """)

    assert shared_bench.scenario.states() == {"t": "failed"}
    assert words in shared_bench.last_line("t")


APPLICATION = str(Path(__file__).parents[4] / "dags" / "spark_cluster_parts" / "pi.py")
HEAP = "The driver has a heap of 200 MB and Spark needs 450 MB: raise spark.driver.memory to 512m or more."
NO_MASTER = (
    "The Spark master spark://127.0.0.1:1 did not answer within 1 s (nothing answers at 127.0.0.1:1: [Errno 111] Connection "
)
NO_MASTER += "refused): start it, or correct "
IN_CONF = f"{NO_MASTER}spark.master in the conf of this task."


def pyspark(conf: dict[str, str], **options: object) -> str:
    """A DAG `d` of one PySpark task `t`."""
    return f"""
        @dag(schedule=None)
        def d():
            @task.pyspark(conf={conf!r}, **{options!r})
            def t(spark):
                return spark.range(1).count()
            t()
        d()
    """


def submitted(**options: object) -> str:
    """The same, submitted as an application."""
    return f"""
        with DAG("d", schedule=None):
            SparkSubmitOperator(task_id="t", application={APPLICATION!r}, **{options!r})
    """


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(pyspark({"spark.driver.memory": "200m"}), f"JvmError: Spark did not start: {HEAP}", id="heap-warm"),
        pytest.param(
            pyspark({"spark.driver.memory": "200m"}, warm=False), f"JvmError: Spark did not start: {HEAP}", id="heap-cold",
            marks=pytest.mark.on_demand,
        ),
        pytest.param(
            submitted(driver_memory="200m", master="local[1]"),
            f"ApplicationError: The Spark application ended with exit code 1; {HEAP} (pi.py line ",
            id="heap-submitted", marks=pytest.mark.on_demand,
        ),
        pytest.param(pyspark({"spark.master": "spark://127.0.0.1:1"}), f"MasterUnreachableError: {IN_CONF}", id="master-warm"),
        pytest.param(
            pyspark({"spark.master": "spark://127.0.0.1:1"}, warm=False), f"MasterUnreachableError: {IN_CONF}", id="master-cold"
        ),
        pytest.param(
            submitted(master="spark://127.0.0.1:1"),
            f"MasterUnreachableError: {NO_MASTER}the connection or the master of this task.", id="master-submitted",
        ),
        pytest.param(
            submitted(master="spark://127.0.0.1:1", deploy_mode="cluster"),
            f"MasterUnreachableError: {NO_MASTER}the connection or the master of this task.", id="master-submitted-to-cluster",
        ),
    ],
)  # fmt: skip
def test_too_small_a_heap_and_a_master_that_is_not_there_are_one_sentence_each(shared_bench: Any, source: str, reason: str) -> None:
    shared_bench.run(source, timeout_s=400)

    assert shared_bench.scenario.states() == {"t": "failed"}
    assert shared_bench.column("t", "reason").startswith(reason)
    assert shared_bench.last_line("t").endswith(f"failed: {shared_bench.column('t', 'reason')}")
    log = shared_bench.log("t")
    assert "str() failed" not in log
    # An application prints its own; of ours there is none.
    assert ("Traceback" in log) == ("pi.py" in reason), log
