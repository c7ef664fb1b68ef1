"""Creates the class archive: a JVM runs a rehearsal of typical work, and writes the archive when it ends."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.exceptions import PacelineError
from scheduler.settings import Settings
from workers.spark import causes, conf, java
from workers.spark.java import check_java
from workers.spark.sessions import session, session_pool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ROWS = 500


def rehearse(spark: "SparkSession", folder: Path) -> None:
    """Read and write files under `folder`, join, rank, group, check and collect, with generated tables."""
    orders = _through_files(spark, folder)
    customers = spark.createDataFrame([(number, f"customer {number}") for number in range(5)], "customer int, name string").cache()
    joined = _joined(orders, customers)
    joined.write.parquet(f"{folder}/joined")
    _summed(spark.read.parquet(f"{folder}/joined")).write.parquet(f"{folder}/sums")
    spark.read.parquet(f"{folder}/sums", f"{folder}/sums").groupBy("name").sum("orders").toPandas()
    _check(orders, customers)


def _through_files(spark: "SparkSession", folder: Path) -> "DataFrame":
    orders = spark.range(ROWS).selectExpr(
        "cast(id as int) as id", "cast(id % 5 as int) as customer", "id * 1.5 as price", "cast(id as decimal(12, 2)) as tax",
        "timestamp'2026-01-01' + make_interval(0, 0, 0, 0, cast(id as int)) as at", "if(id % 10 = 0, null, 'note') as note",
    )  # fmt: skip
    orders.coalesce(1).write.csv(f"{folder}/csv", header=True)
    read = spark.read.csv(f"{folder}/csv", schema=orders.schema, header=True, enforceSchema=False, nullValue="NA", mode="FAILFAST")
    read.write.parquet(f"{folder}/parquet")
    return spark.read.parquet(f"{folder}/parquet")


def _joined(orders: "DataFrame", customers: "DataFrame") -> "DataFrame":
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    return (
        orders.where("id IS NOT NULL AND price > 1")
        .join(customers.hint("merge"), "customer", "left")
        .join(customers.withColumnRenamed("name", "again"), "customer", "left")
        .withColumn("rank", F.row_number().over(Window.partitionBy("customer").orderBy(F.desc("at"))))
        .withColumn("size", F.when(F.col("price") > 100, "large").when(F.col("note").isNull(), "none").otherwise(F.upper("note")))
        .withColumn("late", (F.hour("at") > 12).cast("int"))
    )


def _summed(joined: "DataFrame") -> "DataFrame":
    joined.createOrReplaceTempView("joined")
    counts = (
        "SELECT name, count(DISTINCT id) AS ids, coalesce(sum(price), 0) AS price FROM joined GROUP BY name ORDER BY name LIMIT 3"
    )
    joined.sparkSession.sql(counts).collect()
    return joined.sparkSession.sql(
        "SELECT name, size, count(*) AS orders, sum(tax) AS tax, avg(price) AS price, count_if(late = 1) AS late"
        " FROM {joined} GROUP BY GROUPING SETS ((name, size), (name))",
        joined=joined,
    ).coalesce(1)


def _check(orders: "DataFrame", customers: "DataFrame") -> None:
    from paceline.quality import check, expect

    check(
        expect(orders, "orders").columns({"id": "int"}).rows(ROWS, ROWS).unique("id").not_null("price").between("price", 0, 1e6)
        .foreign_key("customer", customers, name="customers"),
        expect(customers, "customers").rows(5, 5).unique("customer"),
    )  # fmt: skip


#: Work with a session, in a folder that is deleted after it.
Play = Callable[["SparkSession", Path], None]
#: Seconds that a JVM may take to write the archive when it ends.
WRITE_TIMEOUT_S = 300.0
#: The archive contains no compiled code, so the optimizing compiler would only take a third of the CPU.
UNOPTIMIZED = "-XX:TieredStopAtLevel=1"


class ArchiveError(PacelineError):
    """The class archive could not be created."""


def make(settings: Settings, play: Play = rehearse) -> Path:
    """Create the archive, which takes half a minute, and delete earlier ones. Returns its path.

    The archive contains the classes that `play` uses.
    ArchiveError if it cannot be created or written; FailTask if there is no Java that Spark can use.
    """
    check_java()
    target = java.archive_path(settings)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In a folder beside it and then renamed, because JVMs may start at the same time.
        with tempfile.TemporaryDirectory(prefix=".spark-", dir=target.parent) as folder:
            new = Path(folder, target.name)
            _rehearse(settings, new, Path(folder), play)
            if not new.is_file():
                raise ArchiveError(
                    "Java wrote no archive of Spark's classes: this Java cannot, or a folder on Spark's class path contains files."
                )
            new.replace(target)
        for other in target.parent.glob("spark-*.jsa"):
            if other != target:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise ArchiveError(
            f"The archive of Spark's classes cannot be written to {target.parent} ({error.strerror}): "
            "give this user write permission there, or set spark.archive_folder."
        ) from error
    return target


def _rehearse(settings: Settings, target: Path, folder: Path, play: Play) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jvm_conf = conf.merged(settings, {"spark.sql.warehouse.dir": str(folder / "warehouse")})
    with _silent():
        options = [f"-XX:ArchiveClassesAtExit={target}", UNOPTIMIZED, java.QUIET]
        warm = session_pool.start(jvm_conf, {}, settings.spark, options)
        try:
            with session.opened(warm, {}, name="rehearsal") as spark:
                play(spark, folder)
            warm.jvm.stop(WRITE_TIMEOUT_S)
        except Exception as error:
            cause = causes.of_error(error, warm.jvm.recent_output()) or type(error).__name__
            raise ArchiveError(f"Spark could not run the rehearsal for the archive of its classes: {cause}") from error
        finally:
            session_pool.end(warm)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard the output of the JVM on stderr. A failure is reported with its cause."""
    stderr = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
