"""Prints results: JSON for scripts, tables for users, and times in ISO 8601 with a UTC offset."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from scheduler.settings import Settings

#: The state of a task instance that is not decided yet.
NO_STATE = "no state"
#: The styles of states on a terminal.
STYLES = {
    "success": "green", "failed": "bold red", "running": "cyan", "queued": "blue", "scheduled": "blue",
    "up_for_retry": "yellow", "up_for_reschedule": "yellow", "upstream_failed": "red", "skipped": "magenta",
    NO_STATE: "dim", "removed": "dim", "alive": "green", "silent": "bold red", "stopped": "dim",
}  # fmt: skip
#: Control characters but tab and line feed: in a text that a task or a DAG file stored, they would control the terminal.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Without a terminal, no line is cut or wrapped, so that scripts can search and split lines.
UNBOUNDED = 10_000
#: Columns whose text may be wrapped, to at least TEXT_WIDTH characters.
FREE_TEXT = frozenset({
    "reason", "error", "scheduling_error", "description", "what", "value", "default", "upstream", "queues", "workers", "schedule",
    "log",
})  # fmt: skip
TEXT_WIDTH = 16
#: The width between two columns, for the padding and the separator.
COLUMN_GAP = 3
#: Columns that a narrow terminal omits, in this order. The other columns are names and states.
LEAST_IMPORTANT = (
    "content_hash", "pid", "host", "priority_weight", "has_extra", "has_password", "login", "port", "trigger_rule", "pool",
    "operator", "file", "queue", "run_type", "task_count", "heartbeat_at", "updated_at", "created_at", "data_interval_end",
    "data_interval_start", "attempts", "concurrency", "used_slots", "actor", "from_state", "retries", "max_tries", "is_paused",
    "left_out", "waiting", "queued", "total", "worker", "ended_at", "logical_date", "map_label", "schedule", "next_run_after",
    "started_at", "description", "upstream", "took", "try_number",
)  # fmt: skip


def console(*, stderr: bool = False) -> Console:
    """Return a console for stdout or stderr. Without a terminal, it has no styles and unlimited width."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=True, width=None if stream.isatty() else UNBOUNDED)


def want_json(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """The callback of --json."""
    context.meta["paceline.json"] = wanted


def want_wide(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """The callback of --wide."""
    context.meta["paceline.wide"] = wanted


def json_wanted() -> bool:
    """Whether the command has --json."""
    return bool(click.get_current_context().meta.get("paceline.json"))


def result(value: Any, text: str) -> None:
    """Print the text or, with --json, the value."""
    if json_wanted():
        print_json(value)
    else:
        click.echo(text)


def explanation(answer: Mapping[str, Any]) -> None:
    """Print why something is in its state: each step of its history, if the answer has one, and what it waits for now."""
    steps = [f"{step['at']:%Y-%m-%d %H:%M:%S}  {step['text']}" for step in answer.get("history", ())]
    result(answer, "\n".join(map(visible, [*steps, *answer["waiting_for"]])))


def listing(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """Print rows as a table or, with --json, as they are."""
    if json_wanted():
        print_json(rows)
    else:
        table(rows, columns, empty=empty)


def print_json(value: Any) -> None:
    """Print a JSON value to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def say(message: str) -> None:
    """Print a message for the user to stderr."""
    click.echo(visible(message), err=True)


def sayer(settings: Settings, role: str) -> Callable[[str], None]:
    """Return the function that prints messages of a process: `say`, or with logs.format = "json" one that writes JSON lines."""
    from scheduler.process import log_format

    if settings.logs.format != log_format.JSON:
        return say
    log_format.to_stderr(log_format.JSON, role)
    return logging.getLogger(f"paceline.{role}").info


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 run` or `2 tries`."""
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def visible(text: str) -> str:
    """Return the text with its control characters written out."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """Print rows as a table with one column for each key, or the message `empty` if there are no rows.

    A map index follows its task ID, as in measure[0]. Without --wide, times are short, and the least important columns are
    omitted until the table fits the terminal. A pipe gets all columns, unless COLUMNS is set. On a terminal, free text is
    wrapped. IDs are never wrapped. If they alone are too wide, so is the table.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    if not rows:
        say(empty)
        return
    if {"task_id", "map_index"} <= set(columns):
        rows = [row | {"task_id": indexed(row)} for row in map(dict, rows)]
        columns = [column for column in columns if column != "map_index"]
    screen = console()
    # None without the option.
    wide = context.meta.get("paceline.wide") if (context := click.get_current_context(silent=True)) is not None else None
    # A command without --wide prints all columns to a pipe.
    shortened = not wide if screen.is_terminal else wide is False
    width = screen.width if screen.is_terminal else shutil.get_terminal_size((UNBOUNDED, 24)).columns
    now = datetime.now(UTC) if shortened else None
    cells = {column: [cell(row[column], state=_is_state(column, row[column]), now=now) for row in rows] for column in columns}
    widths = {
        column: max(len(_title(column)), min(TEXT_WIDTH, _longest(of)) if column in FREE_TEXT else _longest(of))
        for column, of in cells.items()
    }
    if shortened:
        chosen = fitting(widths, width)
        full = max(width, _width(widths, chosen)) if screen.is_terminal else UNBOUNDED
        screen = Console(file=sys.stdout, highlight=False, width=full)
    else:
        chosen = list(columns)
        screen = Console(file=sys.stdout, highlight=False, width=UNBOUNDED)
    grid = Table(box=box.SIMPLE_HEAD if screen.is_terminal else None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for column in chosen:
        grid.add_column(_title(column), overflow="fold", no_wrap=screen.is_terminal and column not in FREE_TEXT)
    for line in zip(*(cells[column] for column in chosen), strict=True):
        grid.add_row(*line)
    screen.print(grid)
    if left_out := [column for column in columns if column not in chosen]:
        option = "--json has them" if wide is None else "--wide shows them"
        say(f"Not shown, to fit {width} columns: {', '.join(map(_title, left_out))}; {option}.")


def indexed(task: Mapping[str, Any]) -> Any:
    """Return the ID of a task with the map index of its instance, such as measure[0]."""
    index = task["map_index"]
    return task["task_id"] if index is None or index < 0 else f"{task['task_id']}[{index}]"


def fitting(widths: Mapping[str, int], max_width: int) -> list[str]:
    """Return the columns that fit on a terminal. The least important columns are omitted until the others fit."""
    chosen = list(widths)
    for column in LEAST_IMPORTANT:
        if _width(widths, chosen) <= max_width:
            break
        if column in chosen:
            chosen.remove(column)
    return chosen


def _is_state(column: str, value: Any) -> bool:
    """Whether a value is the state of something. A DAG without runs has no last run, whose state would be undecided."""
    return column.endswith("state") and not (column == "last_run_state" and value is None)


def _width(widths: Mapping[str, int], columns: Sequence[str]) -> int:
    return sum(widths[column] for column in columns) + COLUMN_GAP * (len(columns) - 1)


def _longest(texts: Iterable[Text]) -> int:
    return max(text.cell_len for text in texts)


def _title(column: str) -> str:
    return column.replace("_", " ")


def cell(value: Any, *, state: bool = False, now: datetime | None = None) -> Text:
    """Format a value for a table. With `now`, a time is short, in UTC, and without the date of today."""
    from rich.text import Text

    if state:
        name = NO_STATE if value in {None, "", "none"} else str(value)
        return Text(name, style=STYLES.get(name, ""))
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, datetime):
        return Text(value.isoformat(sep=" ", timespec="seconds") if now is None else _short(value.astimezone(UTC), now))
    if isinstance(value, list | tuple):
        return Text(visible(", ".join(map(str, value))) or "-")
    return Text(visible(str(value)))


def _short(moment: datetime, now: datetime) -> str:
    if moment.date() == now.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%m-%d %H:%M}" if moment.year == now.year else f"{moment:%Y-%m-%d %H:%M}"


def facts(values: Mapping[str, Any]) -> None:
    """Print names and values, one pair on each line."""
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
    from paceline.authoring.frames import DataFrameReference

    if isinstance(value, DataFrameReference):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} is not JSON")
