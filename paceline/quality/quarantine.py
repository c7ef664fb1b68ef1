"""Rows that break a check go to a table of their own, in the same try; the others stay."""

from __future__ import annotations

from typing import Any

from paceline.exceptions import PacelineError
from paceline.quality import backends, report
from paceline.quality.report import Check, Report, Result
from paceline.tables import writes

#: The column with the checks that a row breaks, one in a line.
BROKEN = "paceline_broken"


def split(suite: Any, table: str) -> Any:
    """Move the rows that break a check on single rows to `table`, and check the others. See Suite.quarantine."""
    values = report.context()
    if values is None:
        raise PacelineError("quarantine() works only in a task, because it writes a table.")
    checks = [each for each in suite.checks if each.kind == "row" and not each.warn]
    if not checks:
        raise PacelineError("quarantine() needs a check on single rows, such as not_null(), that is not a warning.")
    good, moved = (_with_spark if _is_spark(suite, values) else _with_duckdb)(suite, checks, table, values)
    if moved:
        promises = ", ".join(each.promise for each in checks)
        note = f"{moved:,} rows are in {table}"
        report.finish(Report((Result(frame=suite.name, promise=promises, status="warned", note=note),)), fail=False)
    rest = type(suite)(suite.frame if good is None else good, suite.name)
    rest.checks = suite.checks
    rest.check()
    return good


def _is_spark(suite: Any, values: Any) -> bool:
    return hasattr(suite.frame, "sparkSession") or (isinstance(suite.frame, str) and values.get("spark") is not None)


def _with_duckdb(suite: Any, checks: list[Check], table: str, values: Any) -> tuple[Any, int]:
    """The good rows as an Arrow table, or None if they are in the table that the suite checks; and how many rows were moved."""
    with backends.DuckDb.opened({0: suite}, values) as duck:
        view = duck.frame(0)
        conditions = [backends.broken(each) for each in checks]
        any_broken = " or ".join(f"coalesce(({text}), false)" for text, _ in conditions)
        bound = [value for _, given in conditions for value in given]
        # Of each row, the promises that it breaks.
        marks = ", ".join(f"case when {text} then ? end" for text, _ in conditions)
        marked = [value for each, (_, given) in zip(checks, conditions, strict=True) for value in (*given, each.promise)]
        bad = duck.arrow(f"select *, concat_ws(chr(10), {marks}) as {BROKEN} from {view} where {any_broken}", [*marked, *bound])
        is_table = isinstance(suite.frame, str)
        good = duck.arrow(f"from {view} where not ({any_broken})", bound) if bad.num_rows or not is_table else None
    writes.append_once(table, bad)
    if is_table and bad.num_rows:
        from paceline.tables import duckdb_engine

        duckdb_engine.overwrite(writes.catalog_of(values).load_table(suite.frame), good)
    return (None if is_table else good), bad.num_rows


def _with_spark(suite: Any, checks: list[Check], table: str, values: Any) -> tuple[Any, int]:
    """The good rows as a DataFrame, or None if they are in the table that the suite checks; and how many rows were moved."""
    from pyspark.sql import functions as F

    from paceline.quality import query

    is_table = isinstance(suite.frame, str)
    frame: Any = values["spark"].table(suite.frame) if is_table else suite.frame
    marks = [F.when(F.coalesce(query.broken(each), F.lit(False)), F.lit(each.promise)) for each in checks]
    marked = frame.withColumn(BROKEN, F.concat_ws("\n", *marks))
    bad = marked.where(F.col(BROKEN) != "")
    good = marked.where(F.col(BROKEN) == "").drop(BROKEN)
    moved = bad.count()
    writes.append_once(table, bad)
    if is_table and moved:
        # A read of the table while it is overwritten is of the snapshot before.
        good.writeTo(suite.frame).overwrite(F.lit(True))
    return (None if is_table else good), moved
