"""How results are printed: JSON for machines, tables for people, moments in ISO 8601 with offset."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
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
#: Columns whose text may be wrapped, to so many characters at least.
FREE_TEXT = frozenset(
    {
        "reason",
        "error",
        "scheduling_error",
        "description",
        "what",
        "value",
        "default",
        "upstream",
        "queues",
        "workers",
        "schedule",
        "log",
    }
)
TEXT_WIDTH = 16
#: Between two columns: the padding and the line under the head.
COLUMN_GAP = 3
#: What a narrow terminal leaves out, the first ones first. The others name a thing or say how it is.
LEAST_IMPORTANT = (
    "content_hash", "pid", "host", "priority_weight", "has_extra", "has_password", "login", "port", "trigger_rule", "pool",
    "operator", "file", "queue", "run_type", "task_count", "heartbeat_at", "updated_at", "created_at", "data_interval_end",
    "data_interval_start", "attempts", "concurrency", "used_slots", "actor", "from_state", "retries", "max_tries", "is_paused",
    "left_out", "waiting", "queued", "total", "worker", "ended_at", "logical_date", "map_label", "schedule", "next_run_after",
    "started_at", "description", "upstream", "took", "try_number",
)  # fmt: skip


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
    """Rows as a table, one column a key; `empty` is said if there are none.

    On a terminal it takes the width there is: times are short, free text is wrapped, and the least important columns are left
    out. Ids are never broken: if they alone are too wide, so is the table.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    if not rows:
        say(empty)
        return
    screen = console()
    now = datetime.now(UTC) if screen.is_terminal else None
    cells = {column: [cell(row[column], state=column.endswith("state"), now=now) for row in rows] for column in columns}
    widths = {
        column: max(len(_title(column)), min(TEXT_WIDTH, _longest(of)) if column in FREE_TEXT else _longest(of))
        for column, of in cells.items()
    }
    if screen.is_terminal:
        kept = fitting(widths, screen.width)
        left_out = [column for column in columns if column not in kept]
        screen = Console(file=sys.stdout, highlight=False, width=max(screen.width, _width(widths, kept)))
    else:
        kept, left_out = list(columns), []
    grid = Table(box=box.SIMPLE_HEAD if screen.is_terminal else None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for column in kept:
        grid.add_column(_title(column), overflow="fold", no_wrap=screen.is_terminal and column not in FREE_TEXT)
    for line in zip(*(cells[column] for column in kept), strict=True):
        grid.add_row(*line)
    screen.print(grid)
    if left_out:
        say(f"Not shown, for lack of room: {', '.join(map(_title, left_out))}; --json has them.")


def fitting(widths: Mapping[str, int], room: int) -> list[str]:
    """The columns that a terminal shows: all, without the least important ones as long as the others are too wide."""
    kept = list(widths)
    for column in LEAST_IMPORTANT:
        if _width(widths, kept) <= room:
            break
        if column in kept:
            kept.remove(column)
    return kept


def _width(widths: Mapping[str, int], kept: Sequence[str]) -> int:
    return sum(widths[column] for column in kept) + COLUMN_GAP * (len(kept) - 1)


def _longest(texts: Iterable[Text]) -> int:
    return max(text.cell_len for text in texts)


def _title(column: str) -> str:
    return column.replace("_", " ")


def cell(value: Any, *, state: bool = False, now: datetime | None = None) -> Text:
    """One value as a person reads it; with `now` a moment is short, in UTC, without the date if that is today's."""
    from rich.text import Text

    if state:
        value = value or "none"
        return Text(str(value), style=STYLES.get(str(value), ""))
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, datetime):
        return Text(value.isoformat(sep=" ", timespec="seconds") if now is None else _short(value.astimezone(UTC), now))
    if isinstance(value, list | tuple):
        return Text(", ".join(map(str, value)) or "-")
    return Text(str(value))


def _short(moment: datetime, now: datetime) -> str:
    if moment.date() == now.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%m-%d %H:%M}" if moment.year == now.year else f"{moment:%Y-%m-%d %H:%M}"


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
