"""How results are printed: JSON for machines, tables for people, moments in ISO 8601 with offset."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: How states look on a terminal.
STYLES = {
    "success": "green", "failed": "bold red", "running": "cyan", "queued": "blue", "scheduled": "blue",
    "up_for_retry": "yellow", "up_for_reschedule": "yellow", "upstream_failed": "red", "skipped": "magenta",
    "none": "dim", "removed": "dim", "alive": "green", "silent": "bold red", "stopped": "dim",
}  # fmt: skip
#: Without a terminal nothing is cut off or wrapped, so that lines can be searched and split.
UNBOUNDED = 10_000


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr; plain and of unlimited width if nobody looks at it."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=True, width=None if stream.isatty() else UNBOUNDED)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def say(message: str) -> None:
    """A word to the person, on stderr."""
    click.echo(message, err=True)


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """Rows as a table, one column a key; `empty` is said if there are none."""
    from rich import box
    from rich.table import Table

    rows = list(rows)
    if not rows:
        say(empty)
        return
    screen = console()
    grid = Table(box=box.SIMPLE_HEAD if screen.is_terminal else None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        grid.add_row(*(cell(row[column], state=column.endswith("state")) for column in columns))
    screen.print(grid)


def cell(value: Any, *, state: bool = False) -> Text:
    """One value as a person reads it."""
    from rich.text import Text

    if state:
        value = value or "none"
        return Text(str(value), style=STYLES.get(str(value), ""))
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, datetime):
        return Text(value.isoformat(sep=" ", timespec="seconds"))
    if isinstance(value, list | tuple):
        return Text(", ".join(map(str, value)) or "-")
    return Text(str(value))


def facts(values: Mapping[str, Any]) -> None:
    """Names and values, one a line."""
    from rich.text import Text

    width = max(map(len, values)) + 2
    screen = console()
    for name, value in values.items():
        screen.print(Text(f"{name.replace('_', ' '):<{width}}") + cell(value, state=name == "state"))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    from scheduler.authoring.frames import DataFrameReference

    if isinstance(value, DataFrameReference):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} is not JSON")
