"""Suites in YAML: a list of checks, each with the name of a method of a suite and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.quality import report

#: The methods that add a check.
CHECKS = (
    "columns", "rows", "not_null", "between", "accepted_values", "matches", "satisfies", "unique", "foreign_key", "fresh", "stable",
)  # fmt: skip


def add(suite: Any, path: Path) -> None:
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
