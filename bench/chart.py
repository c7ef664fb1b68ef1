"""`python -m bench.chart RESULT.json`: the result of a bench as results.png and in README.md, or in the files given.

Needs matplotlib (`--group bench`).
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import report
from bench.goals import HOPS, SHARES

HERE = Path(__file__).parent
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
#: Shapes in which many tasks are ready at once, and shapes that are one chain. Each kind has its own measure.
WIDE = ("wide", "tree", "grid", "many", "many_runs", "map")
ROWS = ("chain", "fib")
COLORS = {"bar": "#2f6f9f", "no_ack": "#9dbdd6", "least": "#b8860b", "aim": "#3a7d44", "text": "#333333"}


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


def replaced(text: str, figures: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """The text with these figures between two marks."""
    begin, end = marks
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"{begin} and {end} are missing"
    return f"{before}{begin}\n{figures}\n{end}{after}"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw two panels: tasks/s as a share of bare Celery's, and hops as a multiple of its hops."""
    from matplotlib.figure import Figure

    shapes, raw = result["shapes"], result["raw"]
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    per_s = f"{raw['celery_tasks_per_s']:,.0f}, no ack {raw['celery_no_ack_tasks_per_s']:,.0f}/s"
    hop = f"{raw['celery_hop_ms_p50']:.2f}, no ack {raw['celery_no_ack_hop_ms_p50']:.2f} ms"
    by_kind = [{name: shapes[name] for name in names if name in shapes} for names in (WIDE, ROWS)]
    _bars(left, by_kind[0], "of_raw_celery", SHARES, f"tasks/s, as a share of bare Celery's\n({per_s})")
    _bars(right, by_kind[1], "hop_over_raw", HOPS, f"median hop, over bare Celery's\n({hop})")
    machine = result["machine"]
    figure.suptitle(
        f"Paceline {machine['commit']}: everything on {machine['cpus']} cores, every state durable in PostgreSQL",
        fontsize=11, color=COLORS["text"],
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _bars(axes: Any, shapes: Mapping[str, Any], ratio: str, goals: Mapping[str, tuple[float, float]], title: str) -> None:
    """For each shape the ratio to Celery with acknowledgments, with its goals, and below it the one to Celery without."""
    highest = 0.0
    for key, color, shift in ((ratio, "bar", -0.2), (f"{ratio}_no_ack", "no_ack", 0.2)):
        values = [shape[key] for shape in shapes.values()]
        ends = [shape["spread"][key] for shape in shapes.values()]
        errors = [[max(0, value - low) for value, (low, _) in zip(values, ends, strict=True)],
                  [max(0, high - value) for value, (_, high) in zip(values, ends, strict=True)]]  # fmt: skip
        places = [place + shift for place in range(len(values))]
        label = "with acknowledgments" if key == ratio else "without"
        axes.barh(
            places, values, 0.38, xerr=errors, color=COLORS[color], label=label, error_kw={"ecolor": COLORS["text"], "capsize": 2}
        )
        for place, value, (_, high) in zip(places, values, ends, strict=True):
            axes.annotate(
                f"{value:.2f}",
                (high, place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                color=COLORS["text"],
                zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        highest = max([highest, *(high for _, high in ends)])
    axes.set_yticks(range(len(shapes)), list(shapes))
    with_goals = {place: goals[name] for place, name in enumerate(shapes) if name in goals}
    for number, kind in enumerate(("least", "aim")):
        marks = [goal[number] for goal in with_goals.values()]
        lows, highs = ([place + half for place in with_goals] for half in (-0.45, 0.45))
        axes.vlines(marks, lows, highs, color=COLORS[kind], linewidth=2, label=kind)
        highest = max([highest, *marks])
    axes.set_title(title, fontsize=10)
    axes.set_xlim(0, highest * 1.2)
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
