"""Suites of checks of a table or a DataFrame: how they are defined, run, and proposed from what there is now."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from paceline.authoring.asset import Asset
from paceline.quality import backends, report
from paceline.quality.backends import quoted
from paceline.quality.report import Check, Report, Result
from paceline.tables import replaced, writes

if TYPE_CHECKING:
    from paceline.quality.backends import Backend

#: Other names of Spark types, with the name in `df.dtypes`.
_ALIASES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint", "bool": "boolean", "str": "string"}
#: The methods that add a check.
CHECKS = (
    "columns", "rows", "not_null", "between", "accepted_values", "matches", "satisfies", "unique", "foreign_key", "fresh", "stable",
)  # fmt: skip


class Suite:
    """The checks of one table or DataFrame, `frame`. Each method adds a check and returns the suite.

    `name` precedes them in the report. `tolerate` is the number of rows that may break the check, or a share of them such as
    0.01. `where` is a SQL condition: only rows for which it is true are examined. `warn=True` logs a warning instead of failing.
    A check with arguments that could never find a broken row is a ValueError.
    """

    def __init__(self, frame: Any, name: str = "") -> None:
        is_table = isinstance(frame, str | Asset)
        self.frame = writes.name_of(frame) if is_table else frame
        self.name = name or (self.frame if is_table else "")
        self.checks: list[Check] = []

    def columns(self, types: Mapping[str, str | None] | Sequence[str], *, exact: bool = False, warn: bool = False) -> Self:
        """The DataFrame has these columns with these types (`{"id": "bigint"}`; None is any); `exact` allows no others."""
        wanted = dict(types) if isinstance(types, Mapping) else dict.fromkeys(_names("columns", types))
        if not wanted and not exact:
            raise ValueError("columns() needs at least one column.")
        shown = ", ".join(name if kind is None else f"{name} {kind}" for name, kind in wanted.items())
        return self._add(promise=f"has the columns {shown}", kind="columns", types=wanted, exact=exact, warn=warn)

    def rows(self, least: int | None = None, most: int | None = None, *, where: str = "", warn: bool = False) -> Self:
        """The number of rows is from `least` to `most`, both included; ValueError without either. `rows(7, 7)` is exactly 7."""
        _check_numbers("rows", least=least, most=most)
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
        return self._add(promise=promise, kind="rows", least=least, most=most, where=where, warn=warn)

    def not_null(self, *columns: str, where: str = "", tolerate: float = 0, warn: bool = False) -> Self:
        """None of these columns is null in any row. With `tolerate=0.05`, at most 5 percent of the rows have a null."""
        names = _names("not_null", columns, least=1)
        return self._row(f"({', '.join(names)}) is never null", names, ("null",), where=where, tolerate=tolerate, warn=warn)

    def between(self, column: str, low: Any, high: Any, *, where: str = "", tolerate: float = 0, warn: bool = False) -> Self:
        """The values of the column that are not null are from `low` to `high`, both included; None is no bound."""
        if low is None and high is None:
            raise ValueError("between() needs a lowest value, a highest one, or both.")
        with contextlib.suppress(TypeError):  # values that only the engine can compare
            if low is not None and high is not None and (low > high) is True:
                raise ValueError(f"between() needs a lowest value that is not above the highest one, not {low} and {high}.")
        promise = f"{column} is between {low} and {high}"
        if low is None:
            promise = f"{column} is at most {high}"
        elif high is None:
            promise = f"{column} is at least {low}"
        return self._row(promise, (column,), ("between", low, high), where=where, tolerate=tolerate, warn=warn)

    def accepted_values(
        self, column: str, values: Sequence[Any], *, where: str = "", tolerate: float = 0, warn: bool = False
    ) -> Self:
        """The values of the column that are not null are among `values`. None in `values` changes nothing."""
        if isinstance(values, str | bytes):
            raise ValueError(f"accepted_values() takes a list of values, not the text {values!r}: write [{values!r}].")
        # In SQL, `x NOT IN (..., NULL)` is true for no x.
        accepted = [value for value in values if value is not None]
        if not accepted:
            raise ValueError("accepted_values() needs at least one value that is not None.")
        shown = ", ".join(map(str, accepted[:10])) + (", ..." if len(accepted) > 10 else "")
        return self._row(f"{column} is one of {shown}", (column,), ("values", *accepted), where=where, tolerate=tolerate, warn=warn)

    def matches(self, column: str, pattern: str, *, where: str = "", tolerate: float = 0, warn: bool = False) -> Self:
        """The values of the column that are not null contain a match of the regular expression: of Java in Spark, else of RE2.

        Use ^ and $ to match the whole value.
        """
        return self._row(f"{column} matches {pattern}", (column,), ("matches", pattern), where=where, tolerate=tolerate, warn=warn)

    def satisfies(self, condition: str, promise: str = "", *, where: str = "", tolerate: float = 0, warn: bool = False) -> Self:
        """The SQL condition is true or null in every row; `promise` describes it in the report."""
        return self._row(promise or condition, (), ("sql", condition), where=where, tolerate=tolerate, warn=warn)

    def unique(self, *columns: str, where: str = "", tolerate: float = 0, warn: bool = False) -> Self:
        """No two rows have the same values in these columns; nulls are equal. Rows beyond the first of a key break it."""
        promise = f"({', '.join(_names('unique', columns, least=1))}) is unique"
        return self._add(promise=promise, kind="unique", needs=columns, where=where, tolerate=tolerate, warn=warn)

    def foreign_key(
        self, columns: str | Sequence[str], target: Any, target_columns: str | Sequence[str] | None = None,
        *, name: str = "", where: str = "", tolerate: float = 0, warn: bool = False,
    ) -> Self:  # fmt: skip
        """The values of these columns, in rows where none is null, exist in `target`; `name` names it in the report."""
        here = (columns,) if isinstance(columns, str) else tuple(columns)
        there = here if target_columns is None else (target_columns,) if isinstance(target_columns, str) else tuple(target_columns)
        if not here or len(here) != len(there):
            raise ValueError(f"foreign_key() compares {len(here)} columns with {len(there)}; name equally many on both sides.")
        name = name or (target if isinstance(target, str) else "")
        promise = f"{', '.join(here)} is found in {name or ', '.join(there)}"
        return self._add(
            promise=promise, kind="foreign_key", needs=here, target=target, target_columns=there, where=where, tolerate=tolerate,
            warn=warn,
        )  # fmt: skip

    def fresh(self, column: str, within: timedelta | float, *, where: str = "", warn: bool = False) -> Self:
        """The newest date or time in the column is at most `within` old, a timedelta or hours."""
        if not isinstance(within, timedelta):
            _check_numbers("fresh", within=within)
        age = within if isinstance(within, timedelta) else timedelta(hours=within)
        promise = f"{column} is at most {age} old"
        return self._add(
            promise=promise, kind="measure", needs=(column,), measure="newest", within_s=age.total_seconds(), where=where, warn=warn
        )

    def stable(
        self, measure: str = "rows", column: str | None = None, *, change: float = 0.5, where: str = "", warn: bool = False
    ) -> Self:
        """A measure differs by at most the share `change` from its median in up to 15 earlier runs; without one, it passes.

        `measure` is "rows" (their number), "mean" (of a column), or "nulls" (the share of nulls in a column, of which `change` is
        the greatest difference). What a run measured counts for later runs if its checks have not failed.
        """
        if measure not in {"rows", "mean", "nulls"}:
            raise ValueError(f"stable() compares rows, mean or nulls, not {measure!r}.")
        if (column is None) != (measure == "rows"):
            raise ValueError("stable() needs a column for mean and nulls, and none for rows.")
        _check_numbers("stable", change=change)
        if change <= 0:
            raise ValueError(f"change is a share such as 0.5, and cannot be {change!r}.")
        what = {"rows": "the number of rows", "mean": f"the mean of {column}", "nulls": f"the share of nulls in {column}"}[measure]
        promise = f"{what} changes by at most {change:.0%}"
        needs = () if column is None else (column,)
        return self._add(promise=promise, kind="measure", needs=needs, measure=measure, change=change, where=where, warn=warn)

    def read(self, path: str | Path) -> Self:
        """Add the checks of a YAML file, see docs/how-to/check-tables.md. ValueError with its entry if one is not valid."""

        _add_all(self, Path(path))
        return self

    def check(self, *, fail: bool = True) -> Report:
        """Run all checks at once. ExpectationError, which is not retried, if one fails, unless `fail=False`."""
        return check(self, fail=fail)

    def quarantine(self, table: str | Asset) -> Any:
        """Append the rows that break a check on single rows to `table`, remove them, and run the checks on the others.

        `table` gets a column `paceline_broken` with the checks that a row breaks, and replaces the rows of earlier tries as
        `append_once` does. Of a table, the other rows are written in place of all; of a DataFrame, they are returned. All of it
        appears if the task succeeds, and nothing of it otherwise.
        """
        from paceline.quality import backends

        return backends.split(self, writes.name_of(table))

    def _row(self, promise: str, needs: Sequence[str], broken: tuple[Any, ...], **options: Any) -> Self:
        return self._add(promise=promise, kind="row", needs=tuple(needs), broken=broken, **options)

    def _add(self, **arguments: Any) -> Self:
        tolerate = arguments.get("tolerate", 0)
        is_share = isinstance(tolerate, float) and 0 < tolerate < 1
        if not is_share and (type(tolerate) is not int or tolerate < 0):
            raise ValueError(
                f"tolerate is a number of rows, such as 10, or a share of them, such as 0.01, and cannot be {tolerate!r}."
            )
        if type(arguments.get("warn", False)) is not bool:
            raise ValueError(f"warn is true or false, not {arguments['warn']!r}.")
        if not isinstance(arguments.get("where", ""), str):
            raise ValueError(f"where is a SQL condition, not {arguments['where']!r}.")
        if where := arguments.get("where"):
            arguments["promise"] += f" where {where}"
        self.checks.append(Check(**arguments))
        return self


def expect(frame: Any, name: str = "") -> Suite:
    """Start a suite of checks of `frame`: a DataFrame of Spark, pandas, Polars or Arrow, or a table by its name or as an asset.

    A table is checked as the task sees it, with what the task has written and nobody else sees yet. `name` precedes the checks
    in the report; it is by default that of the table.
    """
    return Suite(frame, name)


def check(*suites: Suite, fail: bool = True) -> Report:
    """Run the checks of several suites at once; the report is also the XCom `expectations` of the task.

    In Spark, they are one job. If rows break a check, a second one reads some of them; tolerated rows are only counted. A check
    that cannot be computed, such as a comparison of a text with a number, fails with the error of the engine. Then each check is
    a query of its own. ExpectationError with every check that failed, unless `fail=False`. Checks that did not pass without
    failing the task are logged. A task that raises publishes none of its tables.
    """
    from paceline.quality import backends

    values = report.context()
    with backends.opened(suites, values) as by_place:
        results = list(_results(suites, by_place, values))
    return report.finish(Report(tuple(results)), fail=fail)


def _results(suites: Sequence[Suite], by_place: Mapping[int, Backend], values: Any) -> Iterator[Result]:
    settled = {
        (place, number): result
        for place, suite in enumerate(suites)
        for number, result in _known(suite, by_place[place].types(place)).items()
    }
    measures = {each.measure for suite in suites for each in suite.checks if each.kind == "measure"}
    earlier = report.of_earlier_runs(values if measures - {"newest"} else None)
    now = values["ti"].now() if values is not None and "newest" in measures else datetime.now(UTC)
    found: dict[tuple[int, int], Result] = dict(settled)
    for backend in dict.fromkeys(by_place.values()):
        own = [place for place in by_place if by_place[place] is backend]
        open_checks = [
            (place, number, backend.frame(place), each)
            for place in own
            for number, each in enumerate(suites[place].checks)
            if (place, number) not in settled
        ]
        # The number of all rows, for a share of them.
        totals = [
            (place, -1 - number, frame, Check(promise="", kind="rows", where=each.where))
            for place, number, frame, each in open_checks
            if each.is_share
        ]
        counted, impossible = backend.count([*open_checks, *totals])
        for place, number, _, each in open_checks:
            key = (place, number)
            value, total = counted.get(key), counted.get((place, -1 - number))
            if each.kind == "measure" and key not in impossible:
                known = earlier.get(report.name_of(suites[place].name, each.promise), [])
                found[key] = _of_measure(suites[place], each, value, report.usual(known), now)
            else:
                found[key] = _result(suites[place], each, int(value or 0), impossible.get(key, ""), total)
        broken = [each for each in open_checks if found[each[:2]].status != "passed" and found[each[:2]].failing]
        for key, rows in (backend.sample(broken) if broken else {}).items():
            found[key] = replace(found[key], sample=tuple(rows))
    return (found[place, number] for place, suite in enumerate(suites) for number, _ in enumerate(suite.checks))


def _of_measure(suite: Suite, of: Check, value: float | None, usual: float | None, now: datetime) -> Result:
    note = ""
    if value is None:
        note = "there is no value"
    elif of.measure == "newest":
        age = now.timestamp() - value
        newest = datetime.fromtimestamp(value, UTC)
        note = f"the newest is of {newest:%Y-%m-%d %H:%M:%S} UTC" if age > of.within_s else ""
    elif usual is not None:
        change = abs(value - usual) if of.measure == "nulls" else abs(value - usual) / abs(usual) if usual else abs(value)
        note = f"it is {value:,.6g}, and was usually {usual:,.6g}" if change > of.change else ""
    kept = None if of.measure == "newest" else value
    status = "passed" if not note else "warned" if of.warn else "failed"
    return Result(frame=suite.name, promise=of.promise, status=status, note=note, value=kept)  # type: ignore[arg-type]


def _known(suite: Suite, types: Mapping[str, str]) -> dict[int, Result]:
    """The results that the schema alone decides: checks of columns, and checks whose columns are missing."""
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


def _result(suite: Suite, of: Check, failing: int, note: str = "", total: float | None = None) -> Result:
    if of.kind == "rows" and not note:
        note = f"it has {failing:,}" if not (of.least or 0) <= failing <= (failing if of.most is None else of.most) else ""
        failing = 0
    tolerated = int(of.tolerate * (total or 0)) if of.is_share else int(of.tolerate)
    return Result(
        frame=suite.name,
        promise=of.promise,
        failing=failing,
        tolerated=tolerated,
        note=note,
        status="passed" if not note and failing <= tolerated else "warned" if of.warn else "failed",
    )


def _check_numbers(method: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise ValueError(f"{method}() needs a number as {name}, not {value!r}.")


def _names(method: str, columns: Sequence[str], *, least: int = 0) -> Sequence[str]:
    """The names of columns; ValueError for fewer than `least`, or for other arguments than names."""
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ValueError(f"{method}() takes names of columns, not {columns!r}.")
    if len(columns) < least:
        raise ValueError(f"{method}() needs at least one column.")
    return columns


def _add_all(suite: Any, path: Path) -> None:
    """Add the checks of a file; a relative path is one in the folder of the DAG file, else in the working directory."""
    import yaml

    values = report.context()
    if values is not None and not path.is_absolute():
        path = Path(values["dag"].fileloc).parent / path
    text = path.read_text(encoding="utf-8")
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is not YAML: {error}") from None
    if isinstance(entries, Mapping):
        if others := [name for name in entries if name != "checks"]:
            raise ValueError(f"{path.name} has {others[0]!r}; it may have a list of checks below `checks:` and nothing else.")
        entries = entries.get("checks")
    if not isinstance(entries, list):
        raise ValueError(f"{path.name} must be a list of checks, or have one below `checks:`.")
    for number, entry in enumerate(entries, 1):
        try:
            _add(suite, entry)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, check {number}: {error}") from None


def _add(suite: Any, entry: Any) -> None:
    """Add one check: `not_null: [id]`, `fresh: {column: at, within: 24}`, or `unique: id`."""
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise ValueError(f"write it as `name: arguments`, not {entry!r}.")
    ((name, given),) = entry.items()
    if name not in CHECKS:
        raise ValueError(f"there is no check {name!r}; there are {', '.join(CHECKS)}.")
    method = getattr(suite, name)
    if name in {"not_null", "unique"}:
        arguments = dict(given) if isinstance(given, Mapping) else {"columns": given}
        columns = arguments.pop("columns", None)
        method(*([columns] if isinstance(columns, str) else columns or []), **arguments)
    elif isinstance(given, Mapping) and not (name == "columns" and not given.keys() & inspect.signature(method).parameters.keys()):
        method(**given)
    else:
        method(given)


#: A text column with so many different values or fewer has a list of accepted ones.
MOST_VALUES = 20
#: The digits of a bound that is no whole number.
MOST_DIGITS = 6
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def propose(frame: Any) -> str:
    """A suite in YAML that `frame` passes: a frame of pandas, Polars or Arrow, or a table by its name or as an asset.

    It has the columns, those without nulls, keys, ranges of numbers with a margin, texts with few values, and the number of rows
    compared with earlier runs. It knows only the data of today: read it before it is used.
    """
    import yaml

    suite = expect(frame)
    with backends.DuckDb.opened({0: suite}, report.context()) as duck:
        # What the writers of Paceline add is no promise of the author.
        types = {name: kind for name, kind in duck.types(0).items() if name not in {replaced.SOURCE, backends.BROKEN}}
        view = duck.frame(0)
        total = duck.rows(f"select count(*) as n from {view}")[0]["n"]
        # A column without any value has no type that later values must have.
        known = {name: None if kind == '"null"' else kind for name, kind in types.items()}
        checks: list[dict[str, Any]] = [{"columns": known}, {"rows": {"least": 1}} if total else {"rows": {"least": 0}}]
        for name, kind in types.items():
            checks += _of_column(duck, view, name, kind, total) if total else []
    if total:
        checks.append({"stable": {"measure": "rows", "change": 0.5, "warn": True}})
    head = f"# What {suite.name or 'the frame'} had, with {total:,} rows. Keep what is meant.\n"
    return head + str(yaml.safe_dump({"checks": checks}, sort_keys=False, width=120))


def _of_column(duck: backends.DuckDb, view: str, name: str, kind: str, total: int) -> Iterator[dict[str, Any]]:
    column, kind = quoted(name), kind.partition("(")[0]
    facts = duck.rows(f"select count({column}) as present, count(distinct {column}) as different from {view}")[0]
    if facts["present"] == total:
        yield {"not_null": name}
    elif facts["present"]:
        yield {"stable": {"measure": "nulls", "column": name, "change": 0.1, "warn": True}}
    if facts["different"] == total and total > 1 and kind not in {"float", "double"}:
        yield {"unique": name}
    elif kind == "string" and 0 < facts["different"] <= MOST_VALUES and facts["different"] < total:
        values = duck.rows(f"select distinct {column} as one from {view} where {column} is not null order by 1")
        yield {"accepted_values": {"column": name, "values": [row["one"] for row in values], "warn": True}}
    if kind in _NUMBERS and facts["present"] and facts["different"] < total:
        low, high = duck.rows(f"select min({column}) as low, max({column}) as high from {view}")[0].values()
        if not all(map(math.isfinite, (low, high))):
            return
        low, high = Fraction(low), Fraction(high)
        margin = (high - low) / 2
        least = 0 if 0 <= low <= margin else low - margin
        # Outwards, so that rounding leaves out no value.
        yield {
            "between": {"column": name, "low": _short(least, math.floor), "high": _short(high + margin, math.ceil), "warn": True}
        }


def _short(value: Fraction | int, outwards: Callable[[Fraction], int]) -> int | float:
    """A bound that is near a value, in few digits."""
    if abs(value) >= 10**MOST_DIGITS:
        return outwards(Fraction(value))
    unit = 10 ** (MOST_DIGITS - 1 - math.floor(math.log10(abs(value)))) if value else 1
    short = outwards(Fraction(value) * unit) / unit
    return int(short) if short == int(short) else short
