"""A check as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A promise about a DataFrame; up to `tolerate` rows may break it."""

    promise: str
    kind: Literal["columns", "rows", "row", "unique", "foreign_key"]
    #: Columns that must be there for it to be looked at.
    needs: tuple[str, ...] = ()
    tolerate: int = 0
    warn: bool = False
    #: kind "columns": types by name, and whether there may be others.
    types: Mapping[str, str | None] = field(default_factory=dict)
    exact: bool = False
    #: kind "rows": bounds; kind "row": what makes a row break it; kind "foreign_key": where the keys are found.
    least: int | None = None
    most: int | None = None
    broken_if: Any = None
    target: Any = None
    target_columns: tuple[str, ...] = ()
