"""What must hold of the raw tables before anything is built on them: rules as data, each a query for its breaches."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Query = Callable[[str], list[Row]]

SAMPLE_ROWS = 5


@dataclass(frozen=True, slots=True)
class Rule:
    """A promise about one table, and the query that gives the rows breaking it."""

    table: str
    promise: str
    breaches: str
    tolerated_rows: int = 0

    def __str__(self) -> str:
        return f"{self.table}: {self.promise}"


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that does not hold: how many rows break it, and some of them."""

    rule: Rule
    rows: int
    sample: list[Row]

    def __str__(self) -> str:
        allowed = f", {self.rule.tolerated_rows:,} tolerated" if self.rule.tolerated_rows else ""
        shown = "".join(f"\n    {row}" for row in self.sample)
        return f"{self.rule} - broken by {self.rows:,} row{'s' * (self.rows != 1)}{allowed}, such as{shown}"


class RulesBrokenError(ValueError):
    """The raw data breaks the rules it is built on; the message names each rule and shows rows."""

    def __init__(self, breaches: Sequence[Breach]) -> None:
        self.breaches = tuple(breaches)
        super().__init__("The data breaks its rules:\n" + "\n".join(f"  {breach}" for breach in breaches))


def row_count(table: str, least: int, most: int) -> Rule:
    """The table has from `least` to `most` rows."""
    counted = f"SELECT count(*) AS row_count FROM {table}"
    return Rule(
        table,
        f"has {least:,} rows" if least == most else f"has {least:,} to {most:,} rows",
        f"SELECT row_count FROM ({counted}) AS counted WHERE row_count NOT BETWEEN {least} AND {most}",
    )


def unique(table: str, *columns: str) -> Rule:
    """No two rows share these columns."""
    key = ", ".join(columns)
    found = f"SELECT {key}, count(*) AS copies FROM {table} GROUP BY {key} HAVING count(*) > 1"
    return Rule(table, f"({key}) is unique", found)


def not_null(table: str, *columns: str, tolerated_rows: int = 0) -> Rule:
    """These columns always have a value."""
    missing = " OR ".join(f"{column} IS NULL" for column in columns)
    return Rule(table, f"({', '.join(columns)}) is never null", f"SELECT * FROM {table} WHERE {missing}", tolerated_rows)


def within(table: str, column: str, low: float, high: float, *, tolerated_rows: int = 0) -> Rule:
    """The column, where it has a value, is from `low` to `high`."""
    outside = f"SELECT * FROM {table} WHERE {column} NOT BETWEEN {low} AND {high}"
    return Rule(table, f"{column} is between {low} and {high}", outside, tolerated_rows)


def refers(table: str, column: str, target: str, target_column: str, *, tolerated_rows: int = 0) -> Rule:
    """Each value of the column is found in the other table."""
    found = f"SELECT 1 FROM {target} WHERE {target}.{target_column} = {table}.{column}"
    orphans = f"SELECT * FROM {table} WHERE {column} IS NOT NULL AND NOT EXISTS ({found})"
    return Rule(table, f"{column} is found in {target}", orphans, tolerated_rows)


# Tolerated are what the year is known to hold: flights that never left, Caribbean airports and unregistered planes that
# the other files lack, and one wind of 1,048 miles an hour, which cleaning blanks.
RULES = (
    row_count("flights", 336_776, 336_776),
    row_count("weather", 26_000, 26_280),
    row_count("planes", 3_000, 4_000),
    row_count("airports", 1_400, 1_600),
    row_count("airlines", 16, 16),
    unique("flights", "time_hour", "carrier", "flight"),
    unique("weather", "origin", "time_hour"),
    unique("planes", "tailnum"),
    unique("airports", "faa"),
    unique("airlines", "carrier"),
    not_null("flights", "month", "carrier", "flight", "origin", "dest", "sched_dep_time", "time_hour"),
    not_null("weather", "origin", "time_hour"),
    not_null("flights", "dep_time", "dep_delay", tolerated_rows=10_000),
    not_null("flights", "arr_delay", tolerated_rows=12_000),
    within("flights", "year", 2013, 2013),
    within("flights", "month", 1, 12),
    within("flights", "day", 1, 31),
    within("flights", "hour", 0, 23),
    within("flights", "dep_delay", -60, 1_440),
    within("flights", "arr_delay", -120, 1_440),
    within("flights", "distance", 1, 5_000),
    within("weather", "temp", -20, 110),
    within("weather", "visib", 0, 10),
    within("weather", "wind_speed", 0, 120, tolerated_rows=1),
    within("planes", "year", 1950, 2013),
    within("planes", "seats", 1, 500),
    refers("flights", "carrier", "airlines", "carrier"),
    refers("flights", "origin", "airports", "faa"),
    refers("flights", "dest", "airports", "faa", tolerated_rows=10_000),
    refers("flights", "tailnum", "planes", "tailnum", tolerated_rows=60_000),
)


def check(rules: Iterable[Rule], query: Query) -> None:
    """Check the rules with `query`, which runs one SQL statement over the tables.

    Raises RulesBrokenError with every rule that does not hold, so that one look shows all that is wrong.
    """
    numbered = dict(enumerate(rules))
    counts = query(
        " UNION ALL ".join(
            f"SELECT {number} AS rule, count(*) AS breaches FROM ({rule.breaches}) AS breaking" for number, rule in numbered.items()
        )
    )
    broken = sorted((row["rule"], row["breaches"]) for row in counts)
    breaches = [
        Breach(numbered[number], found, query(f"SELECT * FROM ({numbered[number].breaches}) AS b LIMIT {SAMPLE_ROWS}"))
        for number, found in broken
        if found > numbered[number].tolerated_rows
    ]
    if breaches:
        raise RulesBrokenError(breaches)
