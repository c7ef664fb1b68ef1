"""Proposes a suite from what a table or a frame has now, as YAML for `Suite.read`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.quality import backends, report
from paceline.quality.backends import quoted
from paceline.quality.suite import expect

#: A text column with so many different values or fewer has a list of accepted ones.
MOST_VALUES = 20
#: How far beyond its values a number may go, as a share of their range.
MARGIN = 0.5
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def propose(frame: Any) -> str:
    """A suite in YAML that `frame` passes: a frame of pandas, Polars or Arrow, or a table by its name or as an asset.

    It has the columns, those without nulls, keys, ranges of numbers with a margin, texts with few values, and the number of rows
    compared with earlier runs. It knows only the data of today: read it before it is used.
    """
    import yaml

    suite = expect(frame)
    with backends.DuckDb.opened({0: suite}, report.context()) as duck:
        types, view = duck.types(0), duck.frame(0)
        total = duck.rows(f"select count(*) as n from {view}")[0]["n"]
        checks: list[dict[str, Any]] = [{"columns": types}, {"rows": {"least": 1}} if total else {"rows": {"least": 0}}]
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
        low, high = duck.rows(f"select min({column})::double as low, max({column})::double as high from {view}")[0].values()
        margin = (high - low) * MARGIN
        least = 0 if 0 <= low <= margin else low - margin
        yield {"between": {"column": name, "low": _short(least), "high": _short(high + margin), "warn": True}}


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else float(f"{value:.6g}")
