"""The comparison as a table, as a JSON object, and as a table in the README."""

import re
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.measure import quantile
from bench.peers.compare import Pair
from bench.peers.run import Run

COLUMNS = (
    "shape", "Airflow's settings", "Airflow s", "Paceline s", "Airflow tasks/s", "Paceline tasks/s", "ratio", "Airflow hop ms",
    "Paceline hop ms", "Airflow CPU ms/task", "Paceline CPU ms/task", "calibration ms", "load before",
)  # fmt: skip
README = Path(__file__).with_name("README.md")
KEPT = re.compile(r"(?<=<!-- results: begin -->\n).*(?=<!-- results: end -->)", re.DOTALL)
#: Shapes whose tasks run one after the other: only their hops depend on nothing but the engine.
ROWS = ("chain", "fib")


def figures(pair: Pair) -> dict[str, Any]:
    """Medians of both systems for one shape and profile. `ratio` is Airflow's makespan over Paceline's for the same size."""
    airflow, paceline = (_figures(pair, runs) for runs in (pair.airflow, pair.paceline))
    return {
        "shape": pair.shape.name,
        "meaning": pair.shape.meaning,
        "settings": pair.profile.name,
        "tasks": pair.shape.tasks,
        "airflow": airflow,
        "paceline": paceline,
        "load_before": round(pair.load, 1),
        "ratio": round(airflow["makespan_s"] / paceline["makespan_s"], 1),
        "cpu_ratio": round(airflow["cpu_s_per_task"] / paceline["cpu_s_per_task"], 1),
    }


def _figures(pair: Pair, runs: Sequence[Run]) -> dict[str, Any]:
    makespan_s = statistics.median(run.makespan_s for run in runs)
    found = {
        "runs": len(runs),
        "makespan_s": round(makespan_s, 4),
        "makespan_range_s": [round(min(run.makespan_s for run in runs), 4), round(max(run.makespan_s for run in runs), 4)],
        "tasks_per_s": round(pair.shape.tasks / makespan_s, 2),
        "cpu_s_per_task": round(sum(run.cpu_s for run in runs) / (pair.shape.tasks * len(runs)), 5),
        "calibration_ms": round(statistics.median(run.calibration_ms for run in runs), 2),
    }
    if pair.shape.name in ROWS:
        hops = sorted(hop for run in runs for hop in run.hops_ms)
        found["hop_ms"] = {f"p{share}": round(quantile(hops, share / 100), 2) for share in (50, 95, 99)}
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of the results of `figures`."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return "\n".join([*lines, *("| " + " | ".join(_cells(row)) + " |" for row in rows)])


def _cells(row: dict[str, Any]) -> list[str]:
    airflow, paceline = row["airflow"], row["paceline"]
    hops = [f"{side['hop_ms']['p50']:,}" if "hop_ms" in side else "" for side in (airflow, paceline)]
    return [
        row["meaning"],
        row["settings"],
        _times(airflow, 1),
        _times(paceline, 3),
        f"{airflow['tasks_per_s']:.1f}",
        f"{paceline['tasks_per_s']:.0f}",
        f"{row['ratio']:.0f} x",
        *hops,
        *(f"{side['cpu_s_per_task'] * 1e3:.2f}" for side in (airflow, paceline)),
        f"{airflow['calibration_ms']:.1f} / {paceline['calibration_ms']:.1f}",
        f"{row['load_before']:.1f}",
    ]


def _times(side: dict[str, Any], digits: int) -> str:
    """The median, and for several runs also the shortest and the longest."""
    low, high = (f"{seconds:.{digits}f}" for seconds in side["makespan_range_s"])
    return f"{side['makespan_s']:.{digits}f}" + (f" ({low}-{high})" if side["runs"] > 1 else "")


def keep(machine: Mapping[str, Any], rows: Sequence[dict[str, Any]], readme: Path = README) -> None:
    """Write the table to the README, with the date, the machine and the versions."""
    where = (
        f"{datetime.now(UTC).date().isoformat()}, {machine['cpus']} cores ({machine['cpu']}), {machine['memory_gb']} GB,"
        f" {machine['system']}, Python {machine['python']}; Airflow {machine['airflow']}; Paceline at {machine['commit']}."
    )
    text = readme.read_text(encoding="utf-8")
    readme.write_text(KEPT.sub(lambda _: f"{where}\n\n{table(rows)}\n", text), encoding="utf-8")
