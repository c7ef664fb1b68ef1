"""The readable output: a line for each run as it ends, a table at the end, and the machine."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from bench import goals
from bench.measure import Measured, quantiles
from bench.raw import Samples

#: Columns of the table of shapes: heading, keys of the shape's object, format.
COLUMNS = (
    ("tasks", ("tasks",), "{:,}"),
    ("makespan s", ("makespan_s",), "{:.3f}"),
    ("tasks/s", ("tasks_per_s",), "{:,.0f}"),
    ("of raw Celery", ("of_raw_celery",), "{:.2f}"),
    ("no ack", ("of_raw_celery_no_ack",), "{:.2f}"),
    ("hop p50 ms", ("hop_ms", "p50"), "{:.2f}"),
    ("p95", ("hop_ms", "p95"), "{:.2f}"),
    ("p99", ("hop_ms", "p99"), "{:.2f}"),
    ("over a raw hop", ("hop_over_raw",), "{:.2f}"),
    ("no ack", ("hop_over_raw_no_ack",), "{:.2f}"),
    ("CPU ms a task", ("cpu_s_per_task", "total"), "{:.2f}"),
    ("over raw", ("cpu_over_raw",), "{:.2f}"),
    ("no ack", ("cpu_over_raw_no_ack",), "{:.2f}"),
    ("calibration ms", ("calibration_ms",), "{:.1f}"),
)
GOAL_COLUMNS = ("figure", "value", "goal", "")


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def pair_line(samples: Samples, measured: Measured) -> str:
    """One run and its samples of the baseline: with / without acknowledgments."""
    both = (samples.celery, samples.no_ack)
    tasks_per_s, share, cpu = (
        " / ".join(format(value, form) for value in values)
        for form, values in (
            (".0f", [one.tasks_per_s for one in both]),
            (".2f", [measured.tasks_per_s / one.tasks_per_s for one in both]),
            (".2f", [measured.cpu_s_per_task["total"] / one.cpu_s_per_task for one in both]),
        )
    )
    sample = samples.celery
    roles = " ".join(f"{role} {seconds * 1000:.2f}" for role, seconds in measured.cpu_s_per_task.items() if seconds)
    return (
        f"raw {tasks_per_s} tasks/s, hop {sample.hop_ms:.2f} / {samples.no_ack.hop_ms:.2f} ms,"
        f" {sample.commits_per_s:4.0f} commits/s"
        f" ({sample.calibration_ms:.1f}) | {measured.tasks_per_s:5.0f} tasks/s in {measured.makespan_s:.3f} s,"
        f" {share} of raw, hop {quantiles(measured.hops_ms)['p50']:.2f} ms, {cpu} x its CPU ({measured.calibration_ms:.1f})"
        f" ms a task: {roles}"
    )


def row_line(row: Mapping[str, float], calibration_ms: float) -> str:
    """A line of figures by name."""
    return ", ".join(f"{name} {value:.6g}" for name, value in row.items()) + f" ({calibration_ms:.1f})"


def table(result: Mapping[str, Any]) -> None:
    """Print the result as tables on stderr. Figures without a table are in the JSON."""
    console = _console()
    shapes: Mapping[str, Any] = result.get("shapes", {})
    if shapes:
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        grid.add_column("shape")
        for heading, _, _ in COLUMNS:
            grid.add_column(heading, justify="right")
        for name, shape in shapes.items():
            grid.add_row(name, *(_cell(shape, keys, form) for _, keys, form in COLUMNS))
        console.print(grid)
    for part in ("raw", "ratios"):
        for name, value in result.get(part, {}).items():
            console.print(f"{part}: {name} {value}")


def goal_table(result: Mapping[str, Any]) -> None:
    """Print on stderr which goals are met."""
    grid = Table(*GOAL_COLUMNS, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in goals.verdicts(result):
        grid.add_row(*row)
    _console().print(grid)


def _console() -> Console:
    # Without a terminal, nothing is truncated.
    return Console(stderr=True, highlight=False, markup=False, width=None if sys.stderr.isatty() else 160)


def markdown(result: Mapping[str, Any]) -> str:
    """The result as Markdown: the machine, the table of shapes, the goals, and all other figures by name."""
    where = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    lines = [f"Machine: {where}.", "", "| shape | " + " | ".join(heading for heading, _, _ in COLUMNS) + " |"]
    lines += ["|---|" + "---:|" * len(COLUMNS)]
    for name, shape in result.get("shapes", {}).items():
        lines.append(f"| `{name}` | " + " | ".join(_cell(shape, keys, form) for _, keys, form in COLUMNS) + " |")
    lines += ["", f"| {' | '.join(GOAL_COLUMNS)} |", "|---|---:|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in goals.verdicts(result)]
    others = {name: value for name, value in result.items() if name not in {"machine", "shapes"}}
    return "\n".join([*lines, "", *(f"* {name}: `{json.dumps(value)}`" for name, value in others.items())])


def _cell(shape: Mapping[str, Any], keys: tuple[str, ...], form: str) -> str:
    value: Any = shape
    for key in keys:
        value = value.get(key, {})
    if keys[0] == "cpu_s_per_task" and value:
        value *= 1000
    return form.format(value) if value or value == 0 else ""


def machine() -> dict[str, Any]:
    """The machine and the versions on which the figures depend."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "celery": version("celery"),
        "commit": _commit(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """The short ID of the commit, with + if files were changed."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
