"""Shows the progress of a Spark task as text and as a bar."""

from collections.abc import Mapping
from typing import Any

from rich.progress_bar import ProgressBar
from rich.text import Text

BAR_WIDTH = 12
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bar(progress: Mapping[str, Any]) -> tuple[ProgressBar, Text]:
    """Return a bar of the finished Spark tasks among those known so far, and the text beside it."""
    shown = ProgressBar(total=max(progress["tasks"], 1), completed=progress["tasks_done"], width=BAR_WIDTH)
    return shown, Text(words(progress), style="dim", overflow="ellipsis", no_wrap=True)


def words(progress: Mapping[str, Any]) -> str:
    """Describe the progress, such as `3 of 8 stages, 120 of 200 Spark tasks, read 1,200 rows (3.4 MB)`."""
    parts = [
        f"{progress['stages_done']} of {progress['stages']} stages",
        f"{progress['tasks_done']:,} of {progress['tasks']:,} Spark tasks",
    ]
    if progress["tasks_failed"]:
        parts.append(f"{progress['tasks_failed']:,} failed")
    for what in ("read", "written"):
        if progress[f"rows_{what}"] or progress[f"bytes_{what}"]:
            parts.append(f"{what} {progress[f'rows_{what}']:,} rows ({size(progress[f'bytes_{what}'])})")
    if progress["bytes_spilled"]:
        parts.append(f"spilled {size(progress['bytes_spilled'])}")
    if lost := progress["failed_executors"]:
        parts.append(f"{lost} {'executor' if lost == 1 else 'executors'} lost")
    if progress["ui_url"]:
        parts.append(progress["ui_url"])
    return ", ".join(parts)


def size(count: int) -> str:
    """Format a number of bytes as 999 B, 1.2 kB or 34 MB."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.1f} {UNITS[unit]}" if unit and amount < 10 else f"{amount:.0f} {UNITS[unit]}"


class Tenths:
    """Describes the progress of tasks only after each further tenth or stage, for output in which every line stays."""

    def __init__(self) -> None:
        self._shown: dict[tuple[int, int], tuple[int, int]] = {}

    def words_if_new(self, task: Mapping[str, Any]) -> str:
        """Return the progress of a task, or an empty string if there is no further tenth or stage."""
        progress = task["progress"]
        if not progress or not progress["tasks"]:
            return ""
        step = (progress["stages"], 10 * progress["tasks_done"] // progress["tasks"])
        key = (task["id"], task["try_number"])
        if self._shown.get(key) == step:
            return ""
        self._shown[key] = step
        return words(progress)
