"""The Spark job of all checks: one pass for all checks of single rows, and one branch for each comparison of keys.

A branch groups by its key first, so that only distinct keys are shuffled. The union of all branches is one job: broadcasts
and adaptive plans are off, because each would start a job of its own. A second job of the same form reads sample rows,
only for the checks that rows break.

If Spark cannot compute a check, each check is a job of its own, so that the others have a result.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from paceline.quality.report import Check

#: Sample rows per check, and the maximum length in characters of one as JSON.
SAMPLE_ROWS = 5
SAMPLE_CHARACTERS = 2000
#: Column names that do not occur in user data.
_ROWS, _SAMPLE = "__paceline_rows", "__paceline_sample"
_ONE_JOB = {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"}

#: The index of a suite, the number of a check in it, the DataFrame, the check.
Numbered = tuple[int, int, DataFrame, Check]
_STAGE = re.compile(r"^Job aborted due to stage failure: .*? \(TID \d+\) \(.*?\): ")
#: The first two of these.
Key = tuple[int, int]
#: The errors of Spark, without those of the connection to the JVM, as after an interruption.
ERRORS = (PySparkException, Py4JJavaError)


def column(name: str) -> Column:
    """A column by its exact name, in which dots have no meaning."""
    return F.col(f"`{name.replace('`', '``')}`")


def broken(check: Check) -> Column:
    """The condition of a row that breaks a check of single rows."""
    word, *given = check.broken
    match word:
        case "null":
            found = reduce(Column.__or__, (column(name).isNull() for name in check.needs))
        case "between":
            low, high = given
            col = column(check.needs[0])
            found = reduce(Column.__or__, [*([] if low is None else [col < low]), *([] if high is None else [col > high])])
        case "values":
            found = ~column(check.needs[0]).isin(list(given))
        case "matches":
            found = ~column(check.needs[0]).rlike(given[0])
        case _:
            found = ~F.expr(given[0])
    return F.expr(check.where) & found if check.where else found


def _measured(check: Check) -> Column:
    """The value of a check that compares with earlier runs, of the rows that `where` selects."""
    if check.measure == "rows":
        return F.count_if(F.expr(check.where)) if check.where else F.count(F.lit(1))
    col = column(check.needs[0])
    if check.measure == "nulls":
        col = col.isNull().cast("double")
    elif check.measure == "newest":
        col = col.cast("timestamp").cast("double")
    col = F.when(F.expr(check.where), col) if check.where else col
    return F.max(col) if check.measure == "newest" else F.avg(col)


def count(checks: Sequence[Numbered]) -> tuple[dict[Key, Any], dict[Key, str]]:
    """The number of rows that break each check; for a check of kind "rows" that of all rows, for a "measure" its value.

    Also the errors of checks that Spark cannot compute. An error of the DataFrame itself is raised.
    """
    if not checks:
        return {}, {}
    try:
        return _collected(checks, sampled=False), {}
    except ERRORS as error:
        return _alone(checks, error)


def _alone(checks: Sequence[Numbered], error: Exception) -> tuple[dict[Key, Any], dict[Key, str]]:
    """The same with a job for each check, after `error` of the job of all checks."""
    for frame in {place: frame for place, _, frame, _ in checks}.values():
        try:
            frame.write.format("noop").mode("overwrite").save()
        except ERRORS:
            raise error from None
    counted: dict[Key, Any] = {}
    impossible: dict[Key, str] = {}
    for numbered in checks:
        try:
            counted |= _collected([numbered], sampled=False)
        except ERRORS as reason:
            impossible[numbered[:2]] = f"Spark cannot check it: {_first_line(reason)}"
    if not impossible:  # only together they fail, for example for lack of memory
        raise error
    return counted, impossible


def _first_line(error: Exception) -> str:
    """The first line of an error of Spark, without the names of the call, the stage and the task."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage() or error.java_exception.toString())
    line = text.strip().partition("\n")[0].strip()
    return _STAGE.sub("", line) or type(error).__name__


def sample(checks: Sequence[Numbered]) -> dict[Key, list[Any]]:
    """Some of the rows that break each check."""
    return {key: [_parsed(text) for text in value or ()] for key, value in _collected(checks, sampled=True).items()}


def _collected(checks: Sequence[Numbered], *, sampled: bool) -> dict[Key, Any]:
    with _settings(checks[0][2].sparkSession, _ONE_JOB):
        rows = reduce(DataFrame.unionByName, _branches(checks, sampled)).collect()
    return {(row["place"], row["number"]): row["value"] for row in rows}


def _branches(checks: Sequence[Numbered], sampled: bool) -> Iterator[DataFrame]:
    for place in dict.fromkeys(numbered[0] for numbered in checks):
        of_suite = [numbered for numbered in checks if numbered[0] == place]
        of_rows = [numbered for numbered in of_suite if numbered[3].kind in {"row", "rows", "measure"}]
        if of_rows and not sampled:
            yield _one_pass(of_rows)
        for _, number, frame, check in of_suite:
            if check.kind == "row" and sampled:
                yield _shaped(place, number, _violations(frame, check), sampled)
            elif check.kind == "unique":
                yield _shaped(place, number, _duplicates(frame, check), sampled)
            elif check.kind == "foreign_key":
                yield _shaped(place, number, _orphans(frame, check), sampled)


def _one_pass(checks: Sequence[Numbered]) -> DataFrame:
    """All checks of single rows, and the number of rows."""
    frame = checks[0][2]

    def value(check: Check) -> Column:
        if check.kind == "measure":
            return _measured(check)
        if check.kind == "rows":
            return F.count_if(F.expr(check.where)) if check.where else F.count(F.lit(1))
        return F.count_if(broken(check))

    # As double, because measures are no whole numbers.
    structs = [
        F.struct(F.lit(place).alias("place"), F.lit(number).alias("number"), F.col(f"n{index}").alias("value"))
        for index, (place, number, _, _) in enumerate(checks)
    ]
    values = (value(check).cast("double").alias(f"n{index}") for index, (_, _, _, check) in enumerate(checks))
    return frame.agg(*values).select(F.inline(F.array(*structs)))


def _violations(frame: DataFrame, check: Check) -> DataFrame:
    """The rows that break a check."""
    whole = F.to_json(F.struct(*(column(name) for name in frame.columns)), {"ignoreNullFields": "false"})
    return frame.where(broken(check)).select(whole.alias(_SAMPLE))


def _duplicates(frame: DataFrame, check: Check) -> DataFrame:
    """The keys of more than one row, each with the number of its rows beyond the first."""
    keys = [column(name) for name in check.needs]
    frame = frame.where(check.where) if check.where else frame
    grouped = frame.groupBy(*keys).agg(F.count(F.lit(1)).alias(_ROWS)).where(F.col(_ROWS) > 1)
    return grouped.select((F.col(_ROWS) - 1).alias(_ROWS), _keyed(check, F.col(_ROWS).alias("copies")).alias(_SAMPLE))


def _orphans(frame: DataFrame, check: Check) -> DataFrame:
    """The keys that the other DataFrame does not have, each with the number of its rows."""
    keys = [column(name) for name in check.needs]
    frame = frame.where(check.where) if check.where else frame
    mine = frame.dropna(subset=[f"`{name}`" for name in check.needs]).groupBy(*keys).agg(F.count(F.lit(1)).alias(_ROWS))
    theirs = check.target.select(*(column(name).alias(f"__key{place}") for place, name in enumerate(check.target_columns)))
    equal = reduce(Column.__and__, (column(name) == F.col(f"__key{place}") for place, name in enumerate(check.needs)))
    orphans = mine.join(theirs.distinct(), equal, "left_anti")
    return orphans.select(_ROWS, _keyed(check, F.col(_ROWS).alias("rows")).alias(_SAMPLE))


def _shaped(place: int, number: int, found: DataFrame, sampled: bool) -> DataFrame:
    if sampled:
        found = found.select(F.left(_SAMPLE, F.lit(SAMPLE_CHARACTERS)).alias(_SAMPLE)).limit(SAMPLE_ROWS)
    value = F.collect_list(_SAMPLE) if sampled else F.sum(_ROWS).cast("double")
    return found.agg(value.alias("value")).select(F.lit(place).alias("place"), F.lit(number).alias("number"), "value")


def _keyed(check: Check, more: Column) -> Column:
    return F.to_json(F.struct(*(column(name) for name in check.needs), more), {"ignoreNullFields": "false"})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a truncated row
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
