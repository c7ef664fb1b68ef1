"""CREATE TABLE as DuckDB runs it: what an Iceberg table gets of it. What it cannot have is refused, not left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.exceptions import PacelineError

if TYPE_CHECKING:
    import pyarrow as pa

_TRANSFORM = re.compile(r"(\w+)\((?:(\d+),\s*)?\"?(\w+)\"?(?:,\s*(\d+))?\)")
_TRANSFORMS = {"years": "year", "months": "month", "days": "day", "hours": "hour", "date": "day"}
#: What `USING` and `format` may say: the files are Parquet, as those of all tables that pyiceberg writes.
_FORMATS = {"iceberg", "parquet"}


@dataclass(frozen=True)
class Definition:
    """What CREATE TABLE says beside the query and the types of its columns."""

    #: The transform and the column of each partition.
    partitions: tuple[tuple[str, str], ...]
    properties: dict[str, str]
    #: The columns that are NOT NULL.
    required: frozenset[str]
    #: False for WITH NO DATA.
    has_rows: bool

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a query or of an empty table, without null where it is NOT NULL."""
        import pyarrow as pa

        return pa.schema([one.with_nullable(one.nullable and one.name not in self.required) for one in schema])


def of(tree: Any, name: str) -> Definition:
    """The definition of the table `name`. PacelineError for something that it cannot have."""
    from sqlglot import exp

    given = tree.args.get("properties")
    properties, has_rows = dict[str, str](), True
    for one in [] if given is None else given.expressions:
        if isinstance(one, exp.WithDataProperty):
            has_rows = not one.args.get("no")
        elif isinstance(one, exp.FileFormatProperty) and one.name.lower() in _FORMATS | {""}:
            continue
        elif type(one) is exp.Property:
            properties[one.name] = one.args["value"].name
        elif not isinstance(one, exp.PartitionedByProperty):
            raise _unknown(name, one.sql(dialect="duckdb") or one.sql())
    return Definition(tuple(_partitions(tree)), properties, frozenset(_required(tree, name)), has_rows)


def _required(tree: Any, name: str) -> Iterator[str]:
    from sqlglot import exp

    for column in tree.this.expressions if isinstance(tree.this, exp.Schema) else []:
        if not isinstance(column, exp.ColumnDef):
            raise _unknown(name, column.sql(dialect="duckdb"))
        for constraint in column.args.get("constraints") or []:
            if not isinstance(constraint.kind, exp.NotNullColumnConstraint):
                raise _unknown(name, f"{column.name} {constraint.sql(dialect='duckdb')}")
            if not constraint.kind.args.get("allow_null"):
                yield column.name


def _unknown(name: str, text: str) -> PacelineError:
    return PacelineError(
        f"CREATE TABLE {name}: a table of the catalog cannot have {text}; leave it out, or check the rows with checks=[...]."
    )


def _partitions(tree: Any) -> Iterator[tuple[str, str]]:
    """The transform and the column of each partition in PARTITIONED BY."""
    from sqlglot import exp

    for given in tree.find_all(exp.PartitionedByProperty):
        for one in given.this.expressions:
            text = one.sql(dialect="spark") if not isinstance(one, exp.Identifier | exp.Column) else one.name
            found = _TRANSFORM.fullmatch(text)
            if found is None:
                yield "identity", text
                continue
            name, width = found[1].lower(), found[2] or found[4]
            name = _TRANSFORMS.get(name, name)
            yield (f"{name}[{width}]" if width else name), found[3]
