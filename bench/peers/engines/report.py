"""The comparison with engines as a piece of the JSON object, as tables, and in bench/README.md."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.chart import replaced
from bench.peers.engines.alternation import USUAL, Pairs
from bench.peers.engines.catalog import Engine
from bench.peers.engines.session import Trial

COLUMNS = (
    "engine", "shape", "its ms a task", "Paceline's", "Paceline's time over its", "its CPU ms a task", "Paceline's",
    "Paceline's CPU over its", "calibration ms",
)  # fmt: skip
README = Path(__file__).parents[2] / "README.md"
MARKS = ("<!-- engines: begin -->", "<!-- engines: end -->")
#: Digits after the decimal point of times and ratios.
DIGITS = 3
#: CPU seconds below which a run has no figure: Linux counts each process in hundredths of a second.
TICK_S = 0.01


def piece(engine: Engine, pairs: Sequence[Pairs]) -> dict[str, Any]:
    """The figures of an engine, by shape."""
    return {
        "version": engine.version,
        "processes": engine.processes,
        "durable": engine.durable,
        "shapes": {pair.shape.name: figures(pair.trials) for pair in pairs},
    }


def figures(trials: Sequence[tuple[Trial, Trial]]) -> dict[str, Any]:
    """Medians. Each ratio is that of the two trials of a turn: `time_over` is Paceline's time over the engine's."""
    times = _ratios(trials, lambda trial: trial.seconds)
    return {
        "tasks": trials[0][0].steps,
        "turns": len(trials),
        "ms_per_task": _both(trials, lambda trial: trial.seconds * 1000 / trial.steps),
        "time_over": round(median(times), DIGITS),
        "time_over_range": [round(min(times), DIGITS), round(max(times), DIGITS)],
        "cpu_ms_per_task": _both(trials, lambda trial: trial.cpu_s * 1000 / trial.steps),
        "cpu_over": _cpu_over(trials),
        "calibration_ms": _both(trials, lambda trial: trial.calibration_ms),
    }


def _ratios(trials: Sequence[tuple[Trial, Trial]], of: Callable[[Trial], float]) -> list[float]:
    """Paceline's figure over the engine's."""
    return [of(ours) / of(theirs) for theirs, ours in trials]


def _cpu_over(trials: Sequence[tuple[Trial, Trial]]) -> float | None:
    """Paceline's CPU over the engine's. None if both have too little to be counted in each turn."""
    counted = [(theirs, ours) for theirs, ours in trials if min(theirs.cpu_s, ours.cpu_s) >= TICK_S]
    return round(median(_ratios(counted, lambda trial: trial.cpu_s)), DIGITS) if counted else None


def _both(trials: Sequence[tuple[Trial, Trial]], of: Callable[[Trial], float]) -> dict[str, float]:
    sides = zip(*trials, strict=True)
    return {name: round(median(map(of, side)), DIGITS) for name, side in zip(("engine", "paceline"), sides, strict=True)}


def table(engines: Mapping[str, Any]) -> str:
    """A Markdown table, and a line for each engine."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(COLUMNS) - 2)]
    for name, engine in engines.items():
        lines += ["| " + " | ".join(_cells(name, shape, row)) + " |" for shape, row in engine["shapes"].items()]
    about = [f"* {name} {one['version']}: {one['processes']}. Durable: {one['durable']}." for name, one in engines.items()]
    return "\n".join([*lines, "", *about])


def summary(engines: Mapping[str, Any]) -> str:
    """A Markdown table with a row for each engine, and a line that says how each ran."""
    known = {shape for engine in engines.values() for shape in engine["shapes"]}
    shapes = [*(name for name in USUAL if name in known), *sorted(known - set(USUAL))]
    columns = ["engine", *(f"`{name}`" for name in shapes), "CPU ms a task", "a step that has ended is durable"]
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(shapes) + 1) + "---|"]
    for name, engine in engines.items():
        rows = [engine["shapes"].get(shape) for shape in shapes]
        cpu = "; ".join(_both_text(row["cpu_ms_per_task"]) for row in rows if row)
        cells = [f"{name} {engine['version']}", *(_summary_cell(row) if row else "" for row in rows), cpu, engine["durable"]]
        lines.append("| " + " | ".join(cells) + " |")
    about = [f"* {name}: {engine['processes']}." for name, engine in engines.items()]
    return "\n".join([*lines, "", *about])


def _summary_cell(row: Mapping[str, Any]) -> str:
    low, high = row["time_over_range"]
    return f"{row['time_over']:.2f} ({low:.2f}-{high:.2f}): {_both_text(row['ms_per_task'])} ms"


def _both_text(sides: Mapping[str, float]) -> str:
    """Paceline's figure and the engine's."""
    return f"{sides['paceline']:.2f} / {sides['engine']:.2f}"


def _cells(engine: str, shape: str, row: Mapping[str, Any]) -> list[str]:
    low, high = row["time_over_range"]
    return [
        engine,
        f"`{shape}`",
        *(f"{row['ms_per_task'][side]:.2f}" for side in ("engine", "paceline")),
        f"{row['time_over']:.2f} ({low:.2f}-{high:.2f})",
        *(f"{row['cpu_ms_per_task'][side]:.2f}" for side in ("engine", "paceline")),
        "" if row["cpu_over"] is None else f"{row['cpu_over']:.2f}",
        f"{row['calibration_ms']['engine']:.1f} / {row['calibration_ms']['paceline']:.1f}",
    ]


def keep(machine: Mapping[str, Any], engines: Mapping[str, Any], failed: Mapping[str, str], readme: Path = README) -> None:
    """Write the table to the README, with the date and the machine, and name the engines that were not measured."""
    where = (
        f"{datetime.now(UTC).date().isoformat()}, {machine['cpus']} cores ({machine['cpu']}), {machine['memory_gb']} GB,"
        f" {machine['system']}, Python {machine['python']}; Paceline at {machine['commit']}."
    )
    missing = "".join(f"\n\nNot measured: {name}, {error}" for name, error in failed.items())
    text = readme.read_text(encoding="utf-8")
    readme.write_text(replaced(text, f"{where}\n\n{summary(engines)}{missing}", MARKS), encoding="utf-8")
