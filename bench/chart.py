"""`python -m bench.chart RESULT.json`: the result of a bench as results.png and in README.md, or elsewhere as told.

Needs matplotlib (`--group bench`).
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report

HERE = Path(__file__).parent
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
#: Shapes in which many tasks are ready at once, and those that are one row: each kind has a measure of its own.
WIDE = ("wide", "tree", "grid", "many", "many_runs", "map")
ROWS = ("chain", "fib")
COLORS = {"bar": "#2f6f9f", "least": "#b8860b", "aim": "#3a7d44", "text": "#333333"}
#: Targets: share of bare Celery's tasks/s; hop over a bare hop. The least that is wanted, and the aim.
SHARE, HOP = (0.7, 1.0), (2.2, 1.4)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chart", description=__doc__)
    parser.add_argument("result", type=Path, help="a file whose last line is what a bench ended with")
    parser.add_argument("--chart", type=Path, default=HERE / "results.png", help="the picture to write")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md", help="the text whose figures are replaced")
    options = parser.parse_args()
    result = json.loads(options.result.read_text(encoding="utf-8").splitlines()[-1])
    draw(result, options.chart)
    text = options.readme.read_text(encoding="utf-8")
    figures = f"![Shares of bare Celery's tasks/s, and multiples of its hop]({options.chart.name})\n\n{report.markdown(result)}"
    options.readme.write_text(replaced(text, figures), encoding="utf-8")


def replaced(text: str, figures: str) -> str:
    """The text with these figures between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{BEGIN} and {END} are missing"
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Two panels: tasks/s as a share of bare Celery's, and hops as a multiple of its."""
    from matplotlib.figure import Figure

    shapes, raw = result["shapes"], result["raw"]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _bars(left, [(name, shapes[name]["of_raw_celery"], shapes[name]["spread"]["of_raw_celery"]) for name in WIDE if name in shapes],
          SHARE, f"tasks/s, as a share of bare Celery's ({raw['celery_tasks_per_s']:,.0f}/s)")  # fmt: skip
    _bars(right, [(name, shapes[name]["hop_over_raw"], shapes[name]["spread"]["hop_over_raw"]) for name in ROWS if name in shapes],
          HOP, f"median hop, over bare Celery's ({raw['celery_hop_ms_p50']:.2f} ms)")  # fmt: skip
    machine = result["machine"]
    figure.suptitle(
        f"Paceline {machine['commit']}: everything on {machine['cpus']} cores, every state durable in PostgreSQL",
        fontsize=11, color=COLORS["text"],
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _bars(axes: Any, rows: Sequence[tuple[str, float, Sequence[float]]], marks: tuple[float, float], title: str) -> None:
    names = [name for name, _, _ in rows]
    values = [value for _, value, _ in rows]
    errors = [[max(0, value - low) for _, value, (low, _) in rows], [max(0, high - value) for _, value, (_, high) in rows]]
    axes.barh(names, values, xerr=errors, color=COLORS["bar"], error_kw={"ecolor": COLORS["text"], "capsize": 3})
    for mark, kind in zip(marks, ("least", "aim"), strict=True):
        axes.axvline(mark, color=COLORS[kind], linestyle="--", linewidth=1.2, label=f"{kind}: {mark}")
    for at, (value, (_, high)) in enumerate((value, ends) for _, value, ends in rows):
        axes.annotate(f"{value:.2f}", (high, at), xytext=(6, 0), textcoords="offset points", va="center", color=COLORS["text"])
    axes.set_title(title, fontsize=10)
    axes.set_xlim(0, max([*marks, *(high for _, _, (_, high) in rows)]) * 1.2)
    axes.invert_yaxis()
    axes.legend(loc="lower right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
