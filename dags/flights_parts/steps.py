"""The Spark steps, from the package's files to one aggregate a month; each writes one folder and returns its path."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from flights_parts import rules, source
from flights_parts.folders import attempt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LATE_MIN = 15
STRONGEST_WIND_MPH = 120


def ingest(spark: "SparkSession", folder: Path) -> str:
    """Write the five source files as Parquet, typed."""
    with attempt(folder / "steps" / "raw") as raw:
        unpacked = raw.parent / "unpacked"
        for table, path in source.unpack(unpacked).items():
            frame = spark.read.csv(
                str(path),
                schema=source.SCHEMAS[table],
                header=True,
                enforceSchema=False,
                nullValue="NA",
                mode="FAILFAST",
            )
            frame.write.parquet(str(raw / table))
        shutil.rmtree(unpacked)
    return str(folder / "steps" / "raw")


def validate(spark: "SparkSession", raw: str) -> str:
    """Check every rule on the raw tables and hand their folder on.

    Raises RulesBrokenError with the rules that do not hold and rows that break them.
    """
    for table in source.SCHEMAS:
        _read(spark, raw, table).createOrReplaceTempView(table)
    rules.check(rules.RULES, lambda statement: [row.asDict() for row in spark.sql(statement).collect()])
    return raw


def clean(spark: "SparkSession", raw: str, folder: Path) -> str:
    """Keep the flights that left and arrived, and blank the winds no instrument can have seen.

    A cleaned row has both delays: cancelled flights have no departure, diverted ones no delay at the destination.
    """
    from pyspark.sql import functions as F

    flights, weather = _read(spark, raw, "flights"), _read(spark, raw, "weather")
    flown = flights.where("dep_delay IS NOT NULL AND arr_delay IS NOT NULL")
    believable = F.when(F.col("wind_speed") <= STRONGEST_WIND_MPH, F.col("wind_speed"))
    with attempt(folder / "steps" / "clean") as cleaned:
        flown.write.parquet(str(cleaned / "flights"))
        weather.withColumn("wind_speed", believable).write.parquet(str(cleaned / "weather"))
        (cleaned / "counts.json").write_text(json.dumps(_counts(flights), indent=2) + "\n", encoding="utf-8")
    return str(folder / "steps" / "clean")


def enrich(spark: "SparkSession", raw: str, cleaned: str, folder: Path) -> str:
    """Join each cleaned flight with its weather, plane, airports and airline, and write them by month.

    Raises ValueError if the joins lost or doubled a flight.
    """
    from pyspark.sql import functions as F

    flights = _read(spark, cleaned, "flights")
    weather = _read(spark, cleaned, "weather").select("origin", "time_hour", "precip", "visib", "wind_speed")
    planes = _read(spark, raw, "planes").select("tailnum", F.col("year").alias("built"))
    airports = _read(spark, raw, "airports").select("faa", "name")
    airlines = _read(spark, raw, "airlines").withColumnRenamed("name", "carrier_name")
    joined = (
        flights.join(weather, ["origin", "time_hour"], "left")
        .join(planes, "tailnum", "left")
        .join(airports.withColumnsRenamed({"faa": "origin", "name": "origin_name"}), "origin", "left")
        .join(airports.withColumnsRenamed({"faa": "dest", "name": "dest_name"}), "dest", "left")
        .join(airlines, "carrier", "left")
        .withColumn("weather", _weather_kind(F.col("precip"), F.col("visib"), F.col("wind_speed")))
        .withColumn("plane_age", _age_band(F.col("year") - F.col("built")))
        .withColumn("late", (F.col("arr_delay") >= LATE_MIN).cast("int"))
    )
    with attempt(folder / "steps" / "enriched") as enriched:
        joined.write.partitionBy("month").parquet(str(enriched))
        before, after = flights.count(), spark.read.parquet(str(enriched)).count()
        if before != after:
            raise ValueError(f"The joins turned {before:,} flights into {after:,}; a table joined has a doubled key.")
    return str(folder / "steps" / "enriched")


def aggregate_month(spark: "SparkSession", enriched: str, month: int, folder: Path) -> str:
    """Sum one month's flights by route and carrier, by hour, by weather and by the plane's age.

    Only whole numbers are summed, so that the tables made of them are the same in whatever order Spark added.
    """
    spark.read.parquet(enriched).where(f"month = {month}").createOrReplaceTempView("enriched")
    sums = spark.sql("""
        SELECT month, carrier, origin, dest, dest_name, hour, weather, plane_age,
               count(*) AS flights, sum(dep_delay) AS dep_delay_min, sum(arr_delay) AS arr_delay_min, sum(late) AS late
        FROM enriched
        GROUP BY GROUPING SETS (
            (month, carrier, origin, dest, dest_name), (month, hour), (month, weather), (month, plane_age)
        )
    """)
    target = folder / "steps" / f"month_{month:02d}"
    with attempt(target) as sums_of_month:
        sums.coalesce(1).write.parquet(str(sums_of_month))
    return str(target)


def _read(spark: "SparkSession", folder: str, table: str) -> "DataFrame":
    return spark.read.parquet(f"{folder}/{table}")


def _counts(flights: "DataFrame") -> dict[str, object]:
    counted = flights.groupBy("month").agg(*_count_expressions()).orderBy("month")
    months = [row.asDict() for row in counted.collect()]
    names = [name for name in months[0] if name != "month"]
    return {name: sum(month[name] for month in months) for name in names} | {"months": months}


def _count_expressions() -> list["Column"]:
    from pyspark.sql import functions as F

    return [
        F.expr("count(*) AS scheduled"),
        F.expr("count_if(dep_delay IS NULL) AS cancelled"),
        F.expr("count_if(dep_delay IS NOT NULL AND arr_delay IS NULL) AS not_arrived"),
        F.expr("count_if(dep_delay IS NOT NULL AND arr_delay IS NOT NULL) AS cleaned"),
        F.expr("coalesce(sum(arr_delay), 0) AS arr_delay_min"),
        F.expr(f"count_if(dep_delay IS NOT NULL AND arr_delay >= {LATE_MIN}) AS late"),
    ]


def _weather_kind(precip: "Column", visibility_miles: "Column", wind_mph: "Column") -> "Column":
    from pyspark.sql import functions as F

    return (
        F.when(precip.isNull(), "not recorded")
        .when(precip > 0, "rain or snow")
        .when(visibility_miles < 5, "haze or fog")
        .when(wind_mph >= 20, "strong wind")
        .otherwise("fair")
    )


def _age_band(years: "Column") -> "Column":
    from pyspark.sql import functions as F

    return (
        F.when(years.isNull(), "not recorded")
        .when(years < 5, "under 5 years")
        .when(years < 10, "5 to 9 years")
        .when(years < 15, "10 to 14 years")
        .when(years < 20, "15 to 19 years")
        .otherwise("20 years or more")
    )
