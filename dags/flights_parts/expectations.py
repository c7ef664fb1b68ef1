"""The data quality checks of the raw tables."""

from typing import TYPE_CHECKING

from paceline.quality import check, expect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from paceline.quality import Report, Suite


def check_raw(
    *, flights: "DataFrame", weather: "DataFrame", planes: "DataFrame", airports: "DataFrame", airlines: "DataFrame"
) -> "Report":
    """Run all checks as one Spark job; ExpectationError names the failed ones, with rows that violate them."""
    return check(*suites(flights=flights, weather=weather, planes=planes, airports=airports, airlines=airlines))


def suites(
    *, flights: "DataFrame", weather: "DataFrame", planes: "DataFrame", airports: "DataFrame", airlines: "DataFrame"
) -> "list[Suite]":
    """The checks by table. They tolerate the known gaps of the year: flights that never left, Caribbean airports and unregistered
    planes that the other files lack, and one wind speed of 1,048 miles per hour, which cleaning blanks.
    """
    return [
        expect(flights, "flights")
        .columns({"month": "int", "dep_delay": "int", "arr_delay": "int", "carrier": "string", "time_hour": "timestamp"})
        .rows(336_776, 336_776)
        .unique("time_hour", "carrier", "flight")
        .not_null("month", "carrier", "flight", "origin", "dest", "sched_dep_time", "time_hour")
        .not_null("dep_time", "dep_delay", tolerate=10_000)
        .not_null("arr_delay", tolerate=12_000)
        .between("year", 2013, 2013)
        .between("month", 1, 12)
        .between("day", 1, 31)
        .between("hour", 0, 23)
        .between("dep_delay", -60, 1_440)
        .between("arr_delay", -120, 1_440)
        .between("distance", 1, 5_000)
        .foreign_key("carrier", airlines, name="airlines")
        .foreign_key("origin", airports, "faa", name="airports")
        .foreign_key("dest", airports, "faa", name="airports", tolerate=10_000)
        .foreign_key("tailnum", planes, name="planes", tolerate=60_000),
        expect(weather, "weather")
        .rows(26_000, 26_280)
        .unique("origin", "time_hour")
        .not_null("origin", "time_hour")
        .between("temp", -20, 110)
        .between("visib", 0, 10)
        .between("wind_speed", 0, 120, tolerate=1),
        expect(planes, "planes").rows(3_000, 4_000).unique("tailnum").between("year", 1950, 2013).between("seats", 1, 500),
        expect(airports, "airports").rows(1_400, 1_600).unique("faa"),
        expect(airlines, "airlines").rows(16, 16).unique("carrier"),
    ]
