"""The 22 queries of TPC-H with their validation parameters, their answers by DuckDB, and how two answers are compared.

The texts are in `queries/`, as the specification has them (query 15 in its variant without a view), with a namespace before each
table. The parameter of query 11 depends on the scale of the data.
"""

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

NAMESPACE = "tpch"
TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")
QUERIES = Path(__file__).with_name("queries")
#: The share of the sum from which on query 11 lists a part, at scale 1.
FRACTION = 0.0001
PARAMETER = re.compile(r":(\w+)")
#: The relative error of a double that several steps have rounded.
ROUNDED = 1e-9


def texts() -> dict[str, str]:
    """The queries by name, from q01 to q22."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(QUERIES.glob("q*.sql"))}


def parameters(scale: float) -> dict[str, dict[str, float]]:
    """The values of the parameters of queries that have some, by query."""
    return {"q11": {"fraction": FRACTION / scale}}


def files(folder: Path) -> dict[str, str]:
    """The Parquet files of the generated data, by the name of their table."""
    return {f"{NAMESPACE}.{name}": str(folder / f"{name}.parquet") for name in TABLES}


def answers(folder: Path, scale: float) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each query by DuckDB, on the generated data."""
    import duckdb

    values, found = parameters(scale), {}
    with duckdb.connect() as connection:
        connection.execute(f"create schema {NAMESPACE}")
        for table, path in files(folder).items():
            connection.execute(f"create view {table} as select * from read_parquet('{path}')")
        for name, text in texts().items():
            found[name] = connection.execute(PARAMETER.sub(r"$\1", text), values.get(name, {})).fetchall()
    return found


def difference(ours: Sequence[Sequence[Any]], theirs: Sequence[Sequence[Any]]) -> str | None:
    """Where an answer first differs from that of DuckDB, in words; None if they are equal, in the same order."""
    if len(ours) != len(theirs):
        return f"{len(ours)} rows instead of {len(theirs)}"
    for number, (row, wanted) in enumerate(zip(ours, theirs, strict=True), start=1):
        if len(row) != len(wanted):
            return f"{len(row)} columns instead of {len(wanted)}"
        for column, (value, right) in enumerate(zip(row, wanted, strict=True), start=1):
            if not is_equal(value, right):
                return f"row {number}, column {column}: {value!r} instead of {right!r}"
    return None


def is_equal(value: Any, right: Any) -> bool:
    """Whether a value is that of DuckDB. All are compared exactly, except averages and quotients of decimals.

    These are doubles in DuckDB. In Spark they are decimals, which are rounded to their last digit.
    """
    if not isinstance(right, float):
        return bool(value == right)
    digit = 10.0 ** int(value.as_tuple().exponent) if isinstance(value, Decimal) else 0.0
    return isinstance(value, float | Decimal) and math.isclose(float(value), right, rel_tol=ROUNDED, abs_tol=digit)


def differences(ours: Mapping[str, Sequence[Sequence[Any]]], theirs: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, str]:
    """What differs, by query; empty if all answers are equal."""
    found = {name: difference(ours[name], wanted) if name in ours else "no answer" for name, wanted in theirs.items()}
    return {name: text for name, text in found.items() if text is not None}
