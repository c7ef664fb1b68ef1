"""The rehearsal for the class archive: a little of everything that tasks of pipelines do."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 500


def play(spark: "SparkSession", folder: Path) -> None:
    """Read and write files under `folder`, join, rank, group, check and collect, with generated tables."""
    orders = _through_files(spark, folder)
    customers = spark.createDataFrame([(number, f"customer {number}") for number in range(5)], "customer int, name string").cache()
    joined = _joined(orders, customers)
    joined.write.parquet(f"{folder}/joined")
    _summed(spark.read.parquet(f"{folder}/joined")).write.parquet(f"{folder}/sums")
    spark.read.parquet(f"{folder}/sums", f"{folder}/sums").groupBy("name").sum("orders").toPandas()
    _check(orders, customers)


def _through_files(spark: "SparkSession", folder: Path) -> "DataFrame":
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    orders = spark.range(ROWS).selectExpr(
        "cast(id as int) as id", "cast(id % 5 as int) as customer", "id * 1.5 as price", "cast(id as decimal(12, 2)) as tax",
        "timestamp'2026-01-01' + make_interval(0, 0, 0, 0, cast(id as int)) as at", "if(id % 10 = 0, null, 'note') as note",
    )  # fmt: skip
    orders.coalesce(1).write.csv(f"{folder}/csv", header=True)
    read = spark.read.csv(f"{folder}/csv", schema=orders.schema, header=True, enforceSchema=False, nullValue="NA", mode="FAILFAST")
    seen = Observation()
    read.observe(seen, F.count(F.lit(1)).alias("rows")).write.parquet(f"{folder}/parquet")
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
