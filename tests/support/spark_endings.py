"""A DAG file whose tasks leave their warm JVM, or its Python side, in the worst possible states, each followed by an ordinary
task. Tests copy it into a DAGs folder. The conf of a run names the ending."""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from paceline import dag, task

ENDINGS: dict[str, Callable[[Any], object]] = {}
#: Objects that a task keeps alive after its end.
KEPT: list[Any] = []
#: Long enough on a busy machine: a JVM that hangs is detected after ANSWER_S.
LONGEST = timedelta(minutes=8)
#: For JVMs that need less CPU to start.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "spark.sql.codegen.wholeStage": False}


def ending(function: Callable[[Any], object]) -> Callable[[Any], object]:
    ENDINGS[function.__name__] = function
    return function


def pid_of(spark: Any) -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


def send(spark: Any, number: int) -> None:
    os.kill(pid_of(spark), number)


@ending
def stops_and_starts_another(spark: Any) -> None:
    from pyspark.sql import SparkSession

    spark.stop()
    assert SparkSession.builder.master("local[1]").getOrCreate().range(3).count() == 3


@ending
def stops_the_jvm_process(spark: Any) -> None:
    send(spark, signal.SIGSTOP)


@ending
def shuts_the_gateway_down(spark: Any) -> None:
    spark.sparkContext._gateway.shutdown()


@ending
def removes_modules(_: Any) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in {"pyspark", "py4j"}]:
        del sys.modules[name]


@ending
def changes_what_sessions_share(spark: Any) -> None:
    """None of this requires a new JVM, and nothing of it may remain."""
    context, log4j = spark.sparkContext, spark._jvm.org.apache.logging.log4j
    context.environment["LEAKED"] = "1"
    context.setLogLevel("OFF")
    log4j.core.config.Configurator.setLevel("org.apache.spark.sql", log4j.Level.TRACE)
    log4j.core.config.Configurator.setLevel("of.mine", log4j.Level.TRACE)
    import logging

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark.range(3).createOrReplaceGlobalTempView("leaked")
    spark.range(3).createOrReplaceTempView("leaked")
    spark.udf.register("leaked", lambda value: value)


@ending
def changes_the_shared_conf(spark: Any) -> None:
    spark.sparkContext._jsc.sc().conf().set("spark.sql.shuffle.partitions", "99")


@ending
def stops(spark: Any) -> None:
    spark.stop()


@ending
def stops_twice(spark: Any) -> None:
    spark.stop()
    spark.stop()


@ending
def leaves_a_context_of_its_own(spark: Any) -> None:
    from pyspark import SparkConf, SparkContext

    spark.stop()
    KEPT.append(SparkContext(conf=SparkConf().setMaster("local[1]").setAppName("mine")))


@ending
def closes_the_gateway(spark: Any) -> None:
    spark.sparkContext._gateway.close()


@ending
def exits_the_jvm(spark: Any) -> None:
    spark._jvm.java.lang.System.exit(3)


@ending
def halts_the_jvm(spark: Any) -> None:
    spark._jvm.java.lang.Runtime.getRuntime().halt(3)


@ending
def kills_the_jvm(spark: Any) -> None:
    send(spark, signal.SIGKILL)


@ending
def terminates_the_jvm(spark: Any) -> None:
    send(spark, signal.SIGTERM)


@ending
def leaves_a_thread_at_work(spark: Any) -> None:
    def work() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                spark.range(1000).count()
            except Exception:
                return

    threading.Thread(target=work).start()


@ending
def leaves_a_thread_of_java(spark: Any) -> None:
    KEPT.append(spark._jvm.java.util.Timer("mine", False))


@ending
def leaves_a_streaming_query(spark: Any) -> None:
    spark.readStream.format("rate").load().writeStream.format("noop").start()


@ending
def leaves_a_callback_server(spark: Any) -> None:
    query = spark.readStream.format("rate").load().writeStream.foreachBatch(lambda *_: None).start()
    query.processAllAvailable()


@ending
def replaces_the_sessions(_: Any) -> None:
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = SparkSession._activeSession = object()


@ending
def forgets_the_context(_: Any) -> None:
    from pyspark import SparkContext

    SparkContext._active_spark_context = None


@ending
def forgets_the_gateway(_: Any) -> None:
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None


@ending
def empties_the_objects(spark: Any) -> None:
    vars(spark.sparkContext).clear()


@ending
def closes_its_sockets(spark: Any) -> None:
    for connection in list(spark.sparkContext._gateway._gateway_client.deque):
        connection.socket.close()


@ending
def drops_the_default_database(spark: Any) -> None:
    spark._jsparkSession.sharedState().externalCatalog().dropDatabase("default", True, True)


@ending
def exhausts_the_heap(spark: Any) -> None:
    held = spark._jvm.java.util.ArrayList()
    KEPT.append(held)
    try:
        while True:
            held.add(spark._jvm.java.nio.ByteBuffer.allocate(50_000_000))
    except Exception as error:
        print("swallowed", type(error))


@ending
def replaces_modules(_: Any) -> None:
    for name in ("pyspark", "pyspark.sql", "pyspark.java_gateway", "py4j.java_gateway", "py4j.protocol"):
        sys.modules[name] = types.ModuleType(name)


@ending
def changes_the_environment(spark: Any) -> None:
    os.environ |= {
        "SPARK_HOME": "/nowhere", "PYSPARK_PYTHON": "/nowhere", "JAVA_HOME": "/nowhere", "PYSPARK_GATEWAY_PORT": "1",
        "PYSPARK_GATEWAY_SECRET": "x", "SPARK_REMOTE": "sc://nowhere", "PYSPARK_SUBMIT_ARGS": "--nonsense", "SPARK_LOCAL_IP": "x",
    }  # fmt: skip
    send(spark, signal.SIGKILL)


@ending
def deletes_its_working_folder(spark: Any) -> None:
    gone = Path(os.environ["PACELINE_HOME"], "gone")
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    send(spark, signal.SIGKILL)


@ending
def deletes_the_folder_of_the_jvm(spark: Any) -> None:
    shutil.rmtree(spark._jvm.java.lang.System.getProperty("java.io.tmpdir"))


@ending
def closes_its_descriptors(_: Any) -> None:
    """Also those over which the pool process reports: only this task is lost."""
    os.closerange(3, 4096)


@ending
def closes_descriptors_of_the_jvm(spark: Any) -> None:
    output = Path(f"/proc/{pid_of(spark)}/fd/2").stat().st_ino
    for connection in list(spark.sparkContext._gateway._gateway_client.deque):
        os.close(connection.socket.fileno())
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if descriptor.stat().st_ino == output:
                os.close(int(descriptor.name))


@ending
def changes_signal_handlers(spark: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    send(spark, signal.SIGKILL)


@ending
def leaves_a_fork_that_holds_the_gateway(_: Any) -> None:
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)


@ending
def leaves_a_fork_that_uses_the_gateway(spark: Any) -> None:
    if os.fork() == 0:
        try:
            for _ in range(50):
                spark.range(1).count()
        finally:
            os._exit(0)
    for _ in range(5):
        spark.range(1).count()


@ending
def leaves_a_metastore(spark: Any) -> None:
    from pyspark.sql import SparkSession

    spark.stop()
    folder = Path(os.environ["PACELINE_HOME"], "derby")
    url = f"jdbc:derby:;databaseName={folder};create=true"
    hive = SparkSession.builder.master("local[1]").config("spark.hadoop.javax.jdo.option.ConnectionURL", url)
    hive.enableHiveSupport().getOrCreate().sql("show tables").collect()


@ending
def stops_the_server_of_accumulators(spark: Any) -> None:
    spark.sparkContext._accumulatorServer.shutdown()


@ending
def kills_the_python_workers(spark: Any) -> None:
    import psutil

    spark.sparkContext.parallelize([1], 1).map(lambda one: one).count()
    for process in psutil.Process(pid_of(spark)).children(recursive=True):
        process.kill()


@ending
def leaves_by_system_exit(_: Any) -> None:
    raise SystemExit(3)


@ending
def is_interrupted(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def found(spark: Any) -> dict[str, Any]:
    """The result of an ordinary task, and the traces of the task before it."""
    import logging

    from pyspark.sql import SparkSession, functions
    from pyspark.sql.types import LongType

    context, log4j = spark.sparkContext, spark._jvm.org.apache.logging.log4j
    plus_one = functions.udf(lambda value: value + 1, LongType())
    assert SparkSession.getActiveSession() is spark
    levels = {name: str(log4j.LogManager.getLogger(name).getLevel()) for name in ("", "org.apache.spark.sql", "of.mine")}
    return {
        "rows": spark.range(5).where(functions.col("id") > 1).select(plus_one("id").alias("x")).agg({"x": "sum"}).first()[0],
        "sum": context.parallelize([1, 2, 3], 2).map(lambda one: one * 2).sum(),
        "made": spark.createDataFrame([(1, "a"), (2, "b")], "id int, name string").groupBy("name").count().count(),
        "conf": [spark.conf.get("spark.sql.shuffle.partitions"), context.getConf().get("spark.sql.shuffle.partitions")],
        "master": context.master,
        "tables": [table.name for table in [*spark.catalog.listTables(), *spark.catalog.listTables("global_temp")]],
        "function": spark.catalog.functionExists("leaked"),
        "environment": dict(context.environment),
        "levels": levels | {"py4j": logging.getLogger("py4j").level},
        "streams": len(spark.streams.active),
    }


@dag(schedule=None)
def endings() -> None:
    @task.pyspark(conf=QUICK, execution_timeout=LONGEST)
    def hostile(spark: Any, dag_run: Any) -> None:
        if dag_run.conf["ending"] in ENDINGS:
            ENDINGS[dag_run.conf["ending"]](spark)

    @task.pyspark(conf=QUICK, trigger_rule="all_done", execution_timeout=LONGEST)
    def ordinary(spark: Any) -> dict[str, Any]:
        return found(spark)

    hostile() >> ordinary()


endings()
