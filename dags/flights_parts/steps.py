"""The Spark steps, from the package's files to the sums of a month: DataFrames in, DataFrames out."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flights_parts import source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LATE_MIN = 15
STRONGEST_WIND_MPH = 120


def ingest(spark: "SparkSession", files: Mapping[str, str]) -> "dict[str, DataFrame]":
    """The source files as typed tables. A file with a different header is rejected."""
    return {
        table: spark.read.csv(
            f"file://{path}", schema=source.SCHEMAS[table], header=True, enforceSchema=False, nullValue="NA", mode="FAILFAST"
        )
        for table, path in files.items()
    }


def clean(flights: "DataFrame", weather: "DataFrame") -> dict[str, Any]:
    """Keep the flights that left and arrived, blank impossible wind speeds, and count the flights that are left out.

    A cleaned row has both delays: cancelled flights have no departure, diverted ones no delay at the destination.
    """
    from pyspark.sql import functions as F

    believable = F.when(F.col("wind_speed") <= STRONGEST_WIND_MPH, F.col("wind_speed"))
    return {
        "flights": flights.where("dep_delay IS NOT NULL AND arr_delay IS NOT NULL"),
        "weather": weather.withColumn("wind_speed", believable),
        "counts": _counts(flights),
    }


def enrich(
    flights: "DataFrame", weather: "DataFrame", planes: "DataFrame", airports: "DataFrame", airlines: "DataFrame"
) -> "DataFrame":
    """Join each cleaned flight with its weather, plane, airports and airline."""
    from pyspark.sql import functions as F

    airports = airports.select("faa", "name")
    return (
        flights.join(weather.select("origin", "time_hour", "precip", "visib", "wind_speed"), ["origin", "time_hour"], "left")
        .join(planes.select("tailnum", F.col("year").alias("built")), "tailnum", "left")
        .join(airports.withColumnsRenamed({"faa": "origin", "name": "origin_name"}), "origin", "left")
        .join(airports.withColumnsRenamed({"faa": "dest", "name": "dest_name"}), "dest", "left")
        .join(airlines.withColumnRenamed("name", "carrier_name"), "carrier", "left")
        .withColumn("weather", _weather_kind(F.col("precip"), F.col("visib"), F.col("wind_speed")))
        .withColumn("plane_age", _age_band(F.col("year") - F.col("built")))
        .withColumn("late", (F.col("arr_delay") >= LATE_MIN).cast("int"))
    )


def aggregate_month(enriched: "DataFrame", month: int | None) -> "DataFrame":
    """Sum the flights of one month, or of each (None), by route and carrier, by hour, by weather and by the plane's age.

    Only integers are summed, so that the resulting tables do not depend on the order in which Spark adds them.
    """
    wanted = enriched if month is None else enriched.where(f"month = {month}")
    return enriched.sparkSession.sql(
        """
        SELECT month, carrier, origin, dest, dest_name, hour, weather, plane_age,
               count(*) AS flights, sum(dep_delay) AS dep_delay_min, sum(arr_delay) AS arr_delay_min, sum(late) AS late
        FROM {wanted}
        GROUP BY GROUPING SETS (
            (month, carrier, origin, dest, dest_name), (month, hour), (month, weather), (month, plane_age)
        )
        """,
        wanted=wanted,
    ).coalesce(1)


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
