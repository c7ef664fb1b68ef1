"""The tables of the model, for the terminal and for docs/explanation/scale.md."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.chart import replaced
from bench.scale import fit

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "scale.md"
CHECK_MARKS = ("<!-- model: begin -->", "<!-- model: end -->")
LARGE_MARKS = ("<!-- deployments: begin -->", "<!-- deployments: end -->")
LARGE_COLUMNS = (
    "deployment", "task instances/s", "a task takes", "keeps up", "lag p50, p95", "PostgreSQL cores", "disk", "log a day",
    "connections", "opened/s", "pool lock held", "run lock held", "scheduler busy", "Redis busy", "registration of all workers",
)  # fmt: skip


def check_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each shape, with its error."""
    lines = ["| shape | measured | model | error | cores of plain Celery at that time |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        name = f"`{row['shape']}`" + ("" if row["in_place"] else " by message") + (" (fitted)" if row["fitted"] else "")
        lines.append(f"| {name} | {row['measured_s']:.3g} s | {row['model_s']:.3g} s | {row['error']:+.0%} | {row['cores']:.1f} |")
    return "\n".join(lines)


def check_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which errors are too large."""
    wrong = fit.wrong(rows)
    return (
        f"The error of {', '.join(wrong)} is over {fit.MOST_ERROR:.0%}."
        if wrong
        else f"All errors are within {fit.MOST_ERROR:.0%}."
    )


def large_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each deployment, and why some do not keep up."""
    lines = ["| " + " | ".join(LARGE_COLUMNS) + " |", "|---|" + "---:|" * (len(LARGE_COLUMNS) - 1)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    missed = [f"* {row['scenario']} does not keep up: {'; '.join(row['why_not'])}." for row in rows if not row["keeps_up"]]
    return "\n".join([*lines, *([""] if missed else []), *missed])


def _cells(row: Mapping[str, Any]) -> list[str]:
    busy, lag = row["busy"], row["lag_s"]
    return [
        row["scenario"],
        f"{row['per_s']:,}",
        f"{row['seconds_of_a_task']:.1f} s",
        "yes" if row["keeps_up"] else "NO",
        f"{lag['p50'] * 1000:.1f}, {lag['p95'] * 1000:.1f} ms" if lag else "",
        f"{busy['postgres_cores']:.1f} of {row['postgres_cores']}",
        f"{row['disk_mb_per_s']:.1f} MB/s, {busy['disk']:.0%} busy",
        f"{row['wal_gb_a_day']:.0f} GB",
        f"{row['connections']['open']:,}",
        f"{row['connections']['opened_per_s']:,.0f}",
        f"{busy['pool_lock']:.0%}",
        f"{row['run_lock']:.1%}",
        f"{busy['scheduler']:.0%}",
        f"{busy['redis']:.0%}",
        f"{row['registration_s']:.1f} s",
    ]


def keep(
    machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], large: Sequence[Mapping[str, Any]], page: Path = PAGE
) -> None:
    """Write the tables to the page, with the date and the machine."""
    where = f"{datetime.now(UTC).date().isoformat()}, {machine['cpus']} cores ({machine['cpu']}), Paceline at {machine['commit']}."
    text = replaced(page.read_text(encoding="utf-8"), f"{where} {check_line(rows)}\n\n{check_table(rows)}", CHECK_MARKS)
    if large:
        text = replaced(text, f"{where}\n\n{large_table(large)}", LARGE_MARKS)
    page.write_text(text, encoding="utf-8")
