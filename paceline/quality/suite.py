"""Suites of checks of a DataFrame: how they are defined and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Self

from paceline.quality import report
from paceline.quality.report import Check, Report, Result

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Other names of Spark types, with the name in `df.dtypes`.
_ALIASES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint", "bool": "boolean", "str": "string"}


class Suite:
    """The checks of one DataFrame, `frame`. Each method adds a check and returns the suite. `name` precedes them in the report.

    `tolerate` is the number of rows that may break the check. `warn=True` logs a warning instead of failing. A check with
    arguments that could never find a broken row is a ValueError.
    """

    def __init__(self, frame: DataFrame, name: str = "") -> None:
        self.frame = frame
        self.name = name
        self.checks: list[Check] = []

    def columns(self, types: Mapping[str, str | None] | Sequence[str], *, exact: bool = False, warn: bool = False) -> Self:
        """The DataFrame has these columns with these types (`{"id": "bigint"}`; None is any); `exact` allows no others."""
        wanted = dict(types) if isinstance(types, Mapping) else dict.fromkeys(_names("columns", types))
        if not wanted and not exact:
            raise ValueError("columns() needs at least one column.")
        shown = ", ".join(name if kind is None else f"{name} {kind}" for name, kind in wanted.items())
        return self._add(promise=f"has the columns {shown}", kind="columns", types=wanted, exact=exact, warn=warn)

    def rows(self, least: int | None = None, most: int | None = None, *, warn: bool = False) -> Self:
        """The number of rows is from `least` to `most`, both included; ValueError without either. `rows(7, 7)` is exactly 7."""
        if least is None and most is None:
            raise ValueError("rows() needs a least number of rows, a greatest one, or both.")
        if least is not None and most is not None and least > most:
            raise ValueError(f"rows() needs a least number that is not above the greatest one, not {least} and {most}.")
        if least is None:
            promise = f"has at most {most:,} rows"
        elif most is None:
            promise = f"has at least {least:,} rows"
        else:
            promise = f"has {least:,} rows" if least == most else f"has {least:,} to {most:,} rows"
        return self._add(promise=promise, kind="rows", least=least, most=most, warn=warn)

    def not_null(self, *columns: str, tolerate: int = 0, warn: bool = False) -> Self:
        """None of these columns is null in any row."""
        broken = reduce(or_, (_col(name).isNull() for name in _names("not_null", columns, least=1)))
        return self._row(f"({', '.join(columns)}) is never null", columns, broken, tolerate, warn)

    def between(self, column: str, low: Any, high: Any, *, tolerate: int = 0, warn: bool = False) -> Self:
        """The values of the column that are not null are from `low` to `high`, both included; None is no bound."""
        if low is None and high is None:
            raise ValueError("between() needs a lowest value, a highest one, or both.")
        col = _col(column)
        promise = f"{column} is between {low} and {high}"
        if low is None:
            return self._row(f"{column} is at most {high}", (column,), col > high, tolerate, warn)
        if high is None:
            return self._row(f"{column} is at least {low}", (column,), col < low, tolerate, warn)
        return self._row(promise, (column,), ~col.between(low, high), tolerate, warn)

    def accepted_values(self, column: str, values: Sequence[Any], *, tolerate: int = 0, warn: bool = False) -> Self:
        """The values of the column that are not null are among `values`. None in `values` changes nothing."""
        if isinstance(values, str | bytes):
            raise ValueError(f"accepted_values() takes a list of values, not the text {values!r}: write [{values!r}].")
        # In SQL, `x NOT IN (..., NULL)` is true for no x.
        accepted = [value for value in values if value is not None]
        if not accepted:
            raise ValueError("accepted_values() needs at least one value that is not None.")
        shown = ", ".join(map(str, accepted[:10])) + (", ..." if len(accepted) > 10 else "")
        return self._row(f"{column} is one of {shown}", (column,), ~_col(column).isin(accepted), tolerate, warn)

    def matches(self, column: str, pattern: str, *, tolerate: int = 0, warn: bool = False) -> Self:
        """The values of the column that are not null contain a match of the (Java) regular expression.

        Use ^ and $ to match the whole value.
        """
        return self._row(f"{column} matches {pattern}", (column,), ~_col(column).rlike(pattern), tolerate, warn)

    def satisfies(self, condition: str, promise: str = "", *, tolerate: int = 0, warn: bool = False) -> Self:
        """The SQL condition is true or null in every row; `promise` describes it in the report."""
        from paceline.quality import query

        return self._row(promise or condition, (), ~query.condition(condition), tolerate, warn)

    def unique(self, *columns: str, tolerate: int = 0, warn: bool = False) -> Self:
        """No two rows have the same values in these columns; nulls are equal. Rows beyond the first of a key break it."""
        promise = f"({', '.join(_names('unique', columns, least=1))}) is unique"
        return self._add(promise=promise, kind="unique", needs=columns, tolerate=tolerate, warn=warn)

    def foreign_key(
        self, columns: str | Sequence[str], target: DataFrame, target_columns: str | Sequence[str] | None = None,
        *, name: str = "", tolerate: int = 0, warn: bool = False,
    ) -> Self:  # fmt: skip
        """The values of these columns, in rows where none is null, exist in `target`; `name` names it in the report."""
        here = (columns,) if isinstance(columns, str) else tuple(columns)
        there = here if target_columns is None else (target_columns,) if isinstance(target_columns, str) else tuple(target_columns)
        if not here or len(here) != len(there):
            raise ValueError(f"foreign_key() compares {len(here)} columns with {len(there)}; name equally many on both sides.")
        promise = f"{', '.join(here)} is found in {name or ', '.join(there)}"
        return self._add(
            promise=promise, kind="foreign_key", needs=here, target=target, target_columns=there, tolerate=tolerate, warn=warn
        )

    def check(self, *, fail: bool = True) -> Report:
        """Run all checks as one Spark job. ExpectationError, which is not retried, if one fails, unless `fail=False`."""
        return check(self, fail=fail)

    def _row(self, promise: str, needs: Sequence[str], broken: Column, tolerate: int, warn: bool) -> Self:
        return self._add(promise=promise, kind="row", needs=tuple(needs), broken_if=broken, tolerate=tolerate, warn=warn)

    def _add(self, **arguments: Any) -> Self:
        tolerate = arguments.get("tolerate", 0)
        if type(tolerate) is not int or tolerate < 0:
            raise ValueError(f"tolerate is a number of rows, such as 10, and cannot be {tolerate!r}.")
        self.checks.append(Check(**arguments))
        return self


def expect(frame: DataFrame, name: str = "") -> Suite:
    """Start a suite of checks of the DataFrame `frame`; `name` precedes its checks in the report."""
    return Suite(frame, name)


def check(*suites: Suite, fail: bool = True) -> Report:
    """Run the checks of several suites as one Spark job; the report is also the XCom `expectations` of the task.

    If rows break a check, a second job reads some of them; tolerated rows are only counted. A check that Spark cannot compute,
    such as a comparison of a text with a number, fails with Spark's error. Then each check is a job of its own.
    ExpectationError with every check that failed, unless `fail=False`. Checks that did not pass without failing the task are
    logged.
    """
    from paceline.quality import query

    settled = {(place, number): result for place, suite in enumerate(suites) for number, result in _known(suite).items()}
    open_checks = [
        (place, number, suite.frame, each)
        for place, suite in enumerate(suites)
        for number, each in enumerate(suite.checks)
        if (place, number) not in settled
    ]
    counted, impossible = query.count(open_checks)
    results = {
        (place, number): settled.get((place, number))
        or _result(suite, each, counted.get((place, number), 0), note=impossible.get((place, number), ""))
        for place, suite in enumerate(suites)
        for number, each in enumerate(suite.checks)
    }
    broken = [each for each in open_checks if results[each[:2]].status != "passed" and results[each[:2]].failing]
    for key, sample in (query.sample(broken) if broken else {}).items():
        results[key] = replace(results[key], sample=tuple(sample))
    return report.finish(Report(tuple(results.values())), fail=fail)


def _known(suite: Suite) -> dict[int, Result]:
    """The results that the schema alone decides: checks of columns, and checks whose columns are missing."""
    types = dict(suite.frame.dtypes)
    known: dict[int, Result] = {}
    for number, each in enumerate(suite.checks):
        if each.kind == "columns":
            known[number] = _result(suite, each, 0, note=wrong_columns(types, each.types, exact=each.exact))
        elif missing := [name for name in each.needs if name not in types]:
            known[number] = _result(suite, each, 0, note=f"there is no column {', '.join(missing)}; it has {', '.join(types)}")
    return known


def wrong_columns(types: Mapping[str, str], wanted: Mapping[str, str | None], *, exact: bool) -> str:
    """The fault in the columns of a DataFrame; an empty string if nothing is."""
    wrong = []
    for name, kind in wanted.items():
        if name not in types:
            wrong.append(f"{name} is missing")
        elif kind is not None and types[name] != _ALIASES.get(kind.lower(), kind.lower()):
            wrong.append(f"{name} is {types[name]}")
    if exact:
        wrong += [f"{name} is too many" for name in types if name not in wanted]
    return ", ".join(wrong)


def _result(suite: Suite, of: Check, failing: int, note: str = "") -> Result:
    if of.kind == "rows" and not note:
        note = f"it has {failing:,}" if not (of.least or 0) <= failing <= (failing if of.most is None else of.most) else ""
        failing = 0
    return Result(
        frame=suite.name,
        promise=of.promise,
        failing=failing,
        tolerated=of.tolerate,
        note=note,
        status="passed" if not note and failing <= of.tolerate else "warned" if of.warn else "failed",
    )


def _names(method: str, columns: Sequence[str], *, least: int = 0) -> Sequence[str]:
    """The names of columns; ValueError for fewer than `least`, or for other arguments than names."""
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ValueError(f"{method}() takes names of columns, not {columns!r}.")
    if len(columns) < least:
        raise ValueError(f"{method}() needs at least one column.")
    return columns


def _col(name: str) -> Column:
    from paceline.quality import query

    return query.column(name)
