"""All checks of a suite as one Spark job: one pass for what each row decides, and a branch for each key that is compared.

A branch is grouped by its key first, so that of many rows only the different keys are shuffled. All branches are one union, and
that is one job: nothing is broadcast, and the plan is not adapted on the way, since each of these is a job of its own.
Rows that break a check are asked for in the same way, of those checks alone, once it is known that there are such.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from scheduler.quality.checks import Check

#: Failing rows that are kept of each check, and the most characters of one, as JSON.
SAMPLE_ROWS = 5
SAMPLE_CHARACTERS = 2000
#: Names that no column of a user has.
_ROWS, _SAMPLE = "__paceline_rows", "__paceline_sample"
_ONE_JOB = {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"}

#: The place of a suite, the number of a check in it, the DataFrame, the check.
Asked = tuple[int, int, DataFrame, Check]


def column(name: str) -> Column:
    """A column by its very name, dots and all."""
    return F.col(f"`{name.replace('`', '``')}`")


def condition(text: str) -> Column:
    return F.expr(text)


def count(asked: Sequence[Asked]) -> dict[tuple[int, int], int]:
    """For each check the rows that break it (for a number of rows: that)."""
    return {key: found or 0 for key, found in _collected(asked, sampled=False).items()}


def sample(asked: Sequence[Asked]) -> dict[tuple[int, int], list[Any]]:
    """For each check some of the rows that break it."""
    return {key: [_parsed(text) for text in found or ()] for key, found in _collected(asked, sampled=True).items()}


def _collected(asked: Sequence[Asked], *, sampled: bool) -> dict[tuple[int, int], Any]:
    with _settings(asked[0][2].sparkSession, _ONE_JOB):
        rows = reduce(DataFrame.unionByName, _branches(asked, sampled)).collect()
    return {(row["place"], row["number"]): row["found"] for row in rows}


def _branches(asked: Sequence[Asked], sampled: bool) -> Iterator[DataFrame]:
    for place in dict.fromkeys(one[0] for one in asked):
        of_suite = [one for one in asked if one[0] == place]
        passing_by = [one for one in of_suite if one[3].kind in {"row", "rows"}]
        if passing_by:
            yield _one_pass(passing_by, sampled)
        for _, number, frame, check in of_suite:
            if check.kind == "unique":
                yield _shaped(place, number, _doubled(frame, check), sampled)
            elif check.kind == "foreign_key":
                yield _shaped(place, number, _lost_processes(frame, check), sampled)


def _one_pass(asked: Sequence[Asked], sampled: bool) -> DataFrame:
    """All checks that look at one row at a time, and the number of rows."""
    frame = asked[0][2]
    whole = F.to_json(F.struct(*(column(name) for name in frame.columns)), {"ignoreNullFields": "false"})

    def found(check: Check) -> Column:
        if check.kind == "rows":
            return F.count(F.lit(1))
        return _some(F.when(check.broken_if, whole)) if sampled else F.count_if(check.broken_if)

    structs = [
        F.struct(F.lit(place).alias("place"), F.lit(number).alias("number"), F.col(f"n{number}").alias("found"))
        for place, number, _, _ in asked
    ]
    return frame.agg(*(found(check).alias(f"n{number}") for _, number, _, check in asked)).select(F.inline(F.array(*structs)))


def _doubled(frame: DataFrame, check: Check) -> DataFrame:
    """The keys that several rows have; of each, the rows too many."""
    keys = [column(name) for name in check.needs]
    grouped = frame.groupBy(*keys).agg(F.count(F.lit(1)).alias(_ROWS)).where(F.col(_ROWS) > 1)
    return grouped.select((F.col(_ROWS) - 1).alias(_ROWS), _keyed(check, F.col(_ROWS).alias("copies")).alias(_SAMPLE))


def _lost_processes(frame: DataFrame, check: Check) -> DataFrame:
    """The keys that the other DataFrame lacks, with the rows that have them."""
    keys = [column(name) for name in check.needs]
    mine = frame.dropna(subset=[f"`{name}`" for name in check.needs]).groupBy(*keys).agg(F.count(F.lit(1)).alias(_ROWS))
    theirs = check.target.select(*(column(name).alias(f"__key{place}") for place, name in enumerate(check.target_columns)))
    equal = reduce(Column.__and__, (column(name) == F.col(f"__key{place}") for place, name in enumerate(check.needs)))
    lost = mine.join(theirs.distinct(), equal, "left_anti")
    return lost.select(_ROWS, _keyed(check, F.col(_ROWS).alias("rows")).alias(_SAMPLE))


def _shaped(place: int, number: int, broken: DataFrame, sampled: bool) -> DataFrame:
    found = _some(F.col(_SAMPLE)) if sampled else F.sum(_ROWS)
    return broken.agg(found.alias("found")).select(F.lit(place).alias("place"), F.lit(number).alias("number"), "found")


def _keyed(check: Check, more: Column) -> Column:
    return F.to_json(F.struct(*(column(name) for name in check.needs), more), {"ignoreNullFields": "false"})


def _some(texts: Column) -> Column:
    """Some of the texts that are not null; never more than SAMPLE_ROWS are held."""
    return F.min_by(F.left(texts, F.lit(SAMPLE_CHARACTERS)), F.when(texts.isNotNull(), 0), SAMPLE_ROWS)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # one that was cut
        return text


@contextmanager
def _settings(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in wanted}
    try:
        for key, value in wanted.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)
