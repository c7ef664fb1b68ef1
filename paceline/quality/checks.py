"""A data quality check as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a DataFrame. It passes if at most `tolerate` rows break its promise."""

    promise: str
    kind: Literal["columns", "rows", "row", "unique", "foreign_key"]
    #: The columns that it needs.
    needs: tuple[str, ...] = ()
    tolerate: int = 0
    warn: bool = False
    #: kind "columns": types by name, and whether there may be others.
    types: Mapping[str, str | None] = field(default_factory=dict)
    exact: bool = False
    #: kind "rows": bounds; kind "row": the condition of a row that breaks it; kind "foreign_key": the other DataFrame.
    least: int | None = None
    most: int | None = None
    broken_if: Any = None
    target: Any = None
    target_columns: tuple[str, ...] = ()
