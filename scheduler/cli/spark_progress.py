"""How far a Spark task is, in words and as a bar."""

from collections.abc import Mapping
from typing import Any

from rich.progress_bar import ProgressBar
from rich.text import Text

BAR_WIDTH = 12
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bar(progress: Mapping[str, Any]) -> tuple[ProgressBar, Text]:
    """Spark's tasks done of all that are known yet, and the words beside it."""
    shown = ProgressBar(total=max(progress["tasks"], 1), completed=progress["tasks_done"], width=BAR_WIDTH)
    return shown, Text(words(progress), style="dim", overflow="ellipsis", no_wrap=True)


def words(progress: Mapping[str, Any]) -> str:
    """3 of 8 stages, 120 of 200 tasks, read 1,200 rows (3.4 MB)."""
    parts = [
        f"{progress['stages_done']} of {progress['stages']} stages",
        f"{progress['tasks_done']:,} of {progress['tasks']:,} tasks",
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
    """999 B, 1.2 kB, 34 MB."""
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.1f} {UNITS[unit]}" if unit and amount < 10 else f"{amount:.0f} {UNITS[unit]}"


class Tenths:
    """Words only when a task has come a tenth further, or to another stage: for where each line stays."""

    def __init__(self) -> None:
        self._said: dict[tuple[int, int], tuple[int, int]] = {}

    def told(self, task: Mapping[str, Any]) -> str:
        """The words, or nothing."""
        progress = task["progress"]
        if not progress or not progress["tasks"]:
            return ""
        place = (progress["stages"], 10 * progress["tasks_done"] // progress["tasks"])
        key = (task["id"], task["try_number"])
        if self._said.get(key) == place:
            return ""
        self._said[key] = place
        return words(progress)
