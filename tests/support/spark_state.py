"""The state that a Spark task can leave in a JVM: what changes it, and what reads it."""

import re
import sys
from pathlib import Path
from typing import Any

from workers.spark.sessions import session
from workers.spark.sessions.session_pool import WarmJvm

#: The log line of a worker that ends a JVM because it exceeded a time limit.
ENDED_BY_TIME = re.compile(r"ending the JVM \d+ of a Spark configuration: .* within \d+ s")


def kept(before: object, after: object, output: str) -> bool:
    """Whether two tasks had the same JVM. On a busy machine it may exceed a time limit, which the log of the worker states."""
    return before == after or ENDED_BY_TIME.search(output) is not None


def seen(jvm: WarmJvm) -> dict[str, Any]:
    """All that a task could find of another."""
    with session.opened(jvm, {}, name="looks") as spark:
        context, hadoop = spark.sparkContext, jvm.context.hadoopConfiguration()
        return {
            "views": [table.name for table in spark.catalog.listTables()],
            "global": [table.name for table in spark.catalog.listTables("global_temp")],
            "functions": spark.catalog.functionExists("mine"),
            "database": spark.catalog.currentDatabase(),
            "conf": [spark.conf.get(key, None) for key in ("spark.sql.shuffle.partitions", "spark.mine")],
            "cached": jvm.session.sharedState().cacheManager().isEmpty(),
            "persisted": context._jsc.getPersistentRDDs().size(),
            "listeners": jvm.context.listenerBus().listeners().size(),
            "properties": [context.getLocalProperty(key) for key in ("mine", "spark.scheduler.pool", "spark.jobGroup.id")],
            "hadoop": [hadoop.get(key) for key in ("mine", "fs.s3a.secret.key", "io.file.buffer.size")],
            "checkpoints": jvm.context.getCheckpointDir().isDefined(),
            "log levels": {name: str(level.getLevel()) for name, level in sorted(jvm.levels._loggers().items())},
            "streams": jvm.session.sharedState().activeStreamingQueries().size(),
            "active": jvm.classes.SparkSession.active().equals(spark._jsparkSession),
            "path": sorted(path for path in sys.path if "spark-" in path),
        }


def leave_everything(spark: Any, folder: Path) -> None:
    """Change all that a task can change in its session and its JVM."""
    context = spark.sparkContext
    hadoop = context._jsc.hadoopConfiguration()
    spark.range(3).createOrReplaceTempView("mine")
    spark.range(3).createOrReplaceGlobalTempView("mine")
    spark.udf.register("mine", lambda x: x)
    spark.conf.set("spark.sql.shuffle.partitions", "99")
    spark.conf.set("spark.mine", "1")
    spark.range(100).cache().count()
    context.parallelize([1, 2]).persist().count()
    spark.streams.active  # noqa: B018 - its listener is added with the first use
    spark.readStream.format("rate").load().writeStream.format("noop").option("checkpointLocation", str(folder / "c")).start()
    context.setLocalProperty("mine", "1")
    context.setLocalProperty("spark.scheduler.pool", "mine")
    hadoop.set("mine", "1")
    hadoop.set("fs.s3a.secret.key", "mine")
    hadoop.unset("io.file.buffer.size")
    context.setCheckpointDir(str(folder / "checkpoints"))
    context.setLogLevel("OFF")


def set_to(spark: Any, number: int) -> None:
    """The same view, function and key of Spark SQL, to things that depend on the number."""
    spark.range(number).createOrReplaceTempView("mine")
    spark.udf.register("f", lambda: number, "int")
    spark.conf.set("spark.sql.shuffle.partitions", str(number))


def found(spark: Any) -> tuple[Any, ...]:
    """Their effect on a query: rows of the view, the result of the function, partitions of the shuffle as planned and as set."""
    grouped = spark.sql("select id % 99 as k, count(*) from mine group by 1")
    planned = re.findall(r"hashpartitioning\(\S+, (\d+)", grouped._jdf.queryExecution().toString())
    return (
        len(grouped.collect()),
        spark.sql("select f()").first()[0],
        {int(one) for one in planned},
        spark.conf.get("spark.sql.shuffle.partitions"),
    )
