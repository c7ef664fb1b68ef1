"""Watches a run: with live bars on a terminal, or else with one line for each change."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection, Engine

from paceline import states
from paceline.exceptions import WaitTimeoutError
from scheduler.cli import output

P = ParamSpec("P")

POLL_S = 0.3
#: Maximum lines of running and of ended task instances on a terminal.
SHOWN = 8


def watch_run(engine: Engine, dag_id: str, run_id: str, *, console: Console, timeout_s: float | None = None) -> dict[str, Any]:
    """Show a run until it ends, and return it with its tasks. WaitTimeoutError after `timeout_s` seconds.

    If the database becomes unreachable, the command waits for it.
    """
    from scheduler.store.read import reads

    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    view: _Bars | _Lines = _Bars(console) if console.is_terminal else _Lines(console)
    since: datetime | None = None
    try:
        while True:
            now = _patiently(engine, console, reads.changes, dag_id, run_id, since=since)
            view.show(now)
            if now["run"]["state"] in states.RUN_FINISHED:
                return _patiently(engine, console, reads.run, dag_id, run_id)
            since = max((row["ended_at"] for row in now["ended"]), default=since)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WaitTimeoutError(
                    f"Run {run_id!r} of DAG {dag_id!r} is {now['run']['state']} after {timeout_s:g} s and continues: "
                    f"`paceline runs watch {dag_id} '{run_id}'` shows it."
                )
            time.sleep(min(POLL_S, left_s))
    finally:
        view.close()


def verdict(run: dict[str, Any]) -> str:
    """Describe the result of a run in one sentence."""
    counts: dict[str, int] = {}
    for task in run["tasks"]:
        name = task["state"] or "none"
        counts[name] = counts.get(name, 0) + 1
    summary = ", ".join(f"{count} {name}" for name, count in counts.items()) or "no tasks"
    took = f" after {duration(run['started_at'], run['ended_at'])}" if run["started_at"] and run["ended_at"] else ""
    return f"Run {run['run_id']} of {run['dag_id']}: {run['state']}{took} ({summary})."


def duration(start: datetime | None, end: datetime | None = None) -> str:
    """Format the time from `start` to `end` (None: now) as 0.4 s, 12 s or 3 min 05 s."""
    if start is None:
        return "-"
    seconds = max(0.0, ((end or datetime.now(UTC)) - start).total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


def _patiently(
    engine: Engine, console: Console, read: Callable[Concatenate[Connection, P], dict[str, Any]], *args: P.args, **kwargs: P.kwargs
) -> dict[str, Any]:
    from scheduler.store.db import database

    def wait(*_: object) -> None:
        database.wait(engine, lambda text: console.print(Text(text)))

    result: dict[str, Any] = database.until_answered(engine, pause_s=0.0, failed=wait)(read, *args, **kwargs)
    return result


class _Lines:
    """Prints a line when the run, or one of its task instances, changes its state."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: set[tuple[Any, ...]] = set()
        self._run_state: str | None = None
        self._error: str | None = None
        self._tenths = Tenths()

    def show(self, now: dict[str, Any]) -> None:
        run = now["run"]
        if run["state"] != self._run_state and run["state"] not in states.RUN_FINISHED:
            self._say(f"{run['dag_id']} {run['run_id']}: {run['state']}")
        self._run_state = run["state"]
        if run["scheduling_error"] != self._error and run["scheduling_error"]:
            self._say(f"{run['dag_id']} {run['run_id']}: {_undecidable(run)}")
        self._error = run["scheduling_error"]
        for task in [*now["ended"], *now["active"]]:
            key = (task["id"], task["try_number"], task["state"])
            if key not in self._seen and task["state"] != "queued":
                self._seen.add(key)
                self._say(f"  {output.indexed(task)}: {task['state']}{_detail(task)}")
            if task["state"] == "running" and (words := self._tenths.words_if_new(task)):
                self._say(f"  {output.indexed(task)}: {words}")

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        self._console.print(Text(f"{datetime.now(UTC):%H:%M:%S} {text}"))


class _Bars:
    """Draws a bar for the run, the running task instances, and those that ended last."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._ended: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._live.start()

    def show(self, now: dict[str, Any]) -> None:
        for task in now["ended"]:
            self._ended.setdefault((task["id"], task["try_number"]), task)
        self._ended = dict(list(self._ended.items())[-200:])
        error = now["run"]["scheduling_error"]
        problem = [Text(_undecidable(now["run"]), style="bold red")] if error else []
        self._live.update(Group(_bar(now), *problem, self._tasks(now["active"])))

    def close(self) -> None:
        self._live.stop()

    def _tasks(self, active: list[dict[str, Any]]) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        for task in [*list(self._ended.values())[-SHOWN:], *active[:SHOWN]]:
            state = Text(task["state"], style=output.STYLES.get(task["state"], ""))
            detail = Text(_detail(task).lstrip(" ,"), style="dim", overflow="ellipsis", no_wrap=True)
            grid.add_row(Text(f"  {output.indexed(task)}"), state, detail)
            if task["state"] == "running" and task["progress"]:
                grid.add_row(Text(""), *bar(task["progress"]))
        if len(active) > SHOWN:
            grid.add_row(Text(f"  and {len(active) - SHOWN} more", style="dim"))
        return grid


def _undecidable(run: dict[str, Any]) -> str:
    return f"cannot be decided: {run['scheduling_error']}"


def _bar(now: dict[str, Any]) -> RenderableType:
    run, counts = now["run"], now["counts"]
    total = sum(counts.values())
    done = sum(counts.get(state, 0) for state in states.FINISHED)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "none")
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        Text(f"{run['dag_id']} {run['run_id']}", style="bold"),
        Text(run["state"], style=output.STYLES.get(run["state"], "")),
        ProgressBar(total=max(total, 1), completed=done, width=30),
        Text(f"{done}/{total}"),
        Text(duration(run["started_at"], run["ended_at"])),
        Text(summary, style="dim"),
    )
    return grid


def _detail(task: dict[str, Any]) -> str:
    parts = []
    if task["state"] == "running":
        parts.append(f"on {task['worker']}")
    if task["started_at"] is not None and task["state"] not in states.DELAYED | {"queued"}:
        parts.append(duration(task["started_at"], task["ended_at"] if task["state"] != "running" else None))
    if task["try_number"] > 1 or task["state"] == "up_for_retry":
        parts.append(f"try {task['try_number']} of {task['max_tries'] + 1}")
    if task["reason"] and task["state"] not in {"success", "running"}:
        parts.append(str(task["reason"]).splitlines()[0])
    return f" {', '.join(parts)}" if parts else ""


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
