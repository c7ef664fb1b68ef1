"""The chart: delays by carrier, by month and by hour of departure, drawn with matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flights_parts.folders import attempt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, QUIET, GRID = "#1f2933", "#6b7785", "#e4e8ec"
LATE, EARLY = "#b5533c", "#3d7a86"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def draw(
    target: Path,
    *,
    carriers: Sequence[tuple[str, float]],
    months: Sequence[tuple[int, float]],
    hours: Sequence[tuple[int, float]],
    mean_min: float,
) -> str:
    """Draw mean arrival delays in minutes as a PNG, and return its path."""
    # A Figure without pyplot needs no display, and shares no state with other tasks of this worker.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.6), dpi=150, facecolor="white")
    grid = figure.add_gridspec(
        2, 2, width_ratios=(1.25, 1), left=0.175, right=0.975, top=0.82, bottom=0.09, wspace=0.16, hspace=0.5
    )
    figure.text(
        0.025,
        0.945,
        "How late New York\N{RIGHT SINGLE QUOTATION MARK}s flights arrived in 2013",
        fontsize=21,
        weight="bold",
        color=INK,
    )
    subtitle = f"Mean arrival delay in minutes, early arrivals counted as negative; all flights: {mean_min:.1f} min"
    figure.text(0.025, 0.905, subtitle, fontsize=12, color=QUIET)
    _carrier_bars(figure.add_subplot(grid[:, 0]), carriers, mean_min)
    _month_bars(figure.add_subplot(grid[0, 1]), months)
    _hour_line(figure.add_subplot(grid[1, 1]), hours)
    with attempt(target) as path:
        # Without matplotlib's version in the file, an upgrade that draws the same does not change it.
        figure.savefig(path, format="png", metadata={"Software": None})
    return str(target)


def _carrier_bars(axes: "Axes", carriers: Sequence[tuple[str, float]], mean_min: float) -> None:
    ordered = sorted(carriers, key=lambda carrier: (carrier[1], carrier[0]))
    names, delays = [name for name, _ in ordered], [delay for _, delay in ordered]
    axes.barh(names, delays, color=[_colour(delay) for delay in delays], height=0.68, zorder=2)
    for row, delay in enumerate(delays):
        gap, side = (0.3, "left") if delay >= 0 else (-0.3, "right")
        axes.text(delay + gap, row, _minutes(delay), va="center", ha=side, fontsize=10, color=INK)
    axes.axvline(mean_min, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=3)
    axes.margins(x=0.12, y=0.015)
    _dress(axes, "By airline, latest first", grid_along="x")
    axes.set_xlabel("minutes late, dashed: mean of all flights", color=QUIET, fontsize=10)
    axes.tick_params(axis="y", labelcolor=INK, labelsize=10.5)


def _month_bars(axes: "Axes", months: Sequence[tuple[int, float]]) -> None:
    labels, delays = [MONTHS[month - 1] for month, _ in months], [delay for _, delay in months]
    axes.bar(labels, delays, color=[_colour(delay) for delay in delays], width=0.68, zorder=2)
    axes.axhline(0, color=INK, linewidth=0.8, zorder=3)
    _dress(axes, "By month", grid_along="y")
    axes.set_ylabel("minutes late", color=QUIET, fontsize=10)


def _hour_line(axes: "Axes", hours: Sequence[tuple[int, float]]) -> None:
    clock, delays = [hour for hour, _ in hours], [delay for _, delay in hours]
    axes.plot(clock, delays, color=LATE, linewidth=2.2, marker="o", markersize=4.5, zorder=2)
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1)
    axes.set_xticks(range(min(clock), max(clock) + 1, 3))
    _dress(axes, "By scheduled hour of departure", grid_along="y")
    axes.set_xlabel("hour of the day, local time", color=QUIET, fontsize=10)
    axes.set_ylabel("minutes late", color=QUIET, fontsize=10)


def _dress(axes: "Axes", title: str, *, grid_along: str) -> None:
    axes.set_title(title, loc="left", fontsize=13, weight="bold", color=INK, pad=10)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(axis=grid_along, color=GRID, linewidth=0.9, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=QUIET, labelsize=10)


def _colour(delay_min: float) -> str:
    return LATE if delay_min >= 0 else EARLY


def _minutes(delay_min: float) -> str:
    return f"{delay_min:.1f}".replace("-", "\N{MINUS SIGN}")
