"""The report: delays.png, a self-contained report.html with it, and summary.json, all from the result tables."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flights_parts import chart, steps, tables
from flights_parts.folders import attempt

Row = dict[str, str]

TEMPLATE = Path(__file__).with_name("report.html.jinja")
MONTH_NAMES = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_AGES = ("under 5 years", "5 to 9 years", "10 to 14 years", "15 to 19 years", "20 years or more", "not recorded")


@dataclass(frozen=True, slots=True)
class Results:
    """The input of the report: the rows of the four tables, the names of the airlines and the counts of cleaning."""

    carriers: list[Row]
    months: list[Row]
    routes: list[Row]
    conditions: list[Row]
    names: Mapping[str, str]
    counts: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, names: Mapping[str, str], counts: Mapping[str, Any]) -> "Results":
        """Read the tables of the run that wrote into `folder`."""
        return cls(
            carriers=tables.read_csv(folder / "carrier_delays.csv"),
            months=tables.read_csv(folder / "monthly.csv"),
            routes=tables.read_csv(folder / "worst_routes.csv"),
            conditions=tables.read_csv(folder / "conditions.csv"),
            names=names,
            counts=counts,
        )

    def of(self, condition: str) -> list[Row]:
        """The rows of one condition: hour, weather or plane_age."""
        return [row for row in self.conditions if row["condition"] == condition]


def write_report(folder: Path, run_id: str, *, names: Mapping[str, str], counts: Mapping[str, Any], checks: int) -> dict[str, Any]:
    """Write the chart, the page and the summary. Returns the number of carriers, the number of rows and the path of the page."""
    results = Results.read(folder, names, counts)
    summary = summarize(results)
    picture = chart.draw(
        folder / "delays.png",
        carriers=[(results.names[row["carrier"]], _delay(row)) for row in results.carriers],
        months=[(int(row["month"]), _delay(row)) for row in results.months],
        hours=[(int(row["value"]), _delay(row)) for row in results.of("hour")],
        mean_min=summary["mean_arr_delay_min"],
    )
    _write(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    page = render(results, summary, picture=Path(picture).read_bytes(), run_id=run_id, checks=checks)
    report = _write(folder / "report.html", page)
    return {"carriers": summary["carriers"], "rows": summary["cleaned_rows"], "report": report}


def summarize(results: Results) -> dict[str, Any]:
    """The headline figures of the year, as numbers."""
    counts = results.counts
    return {
        "scheduled_rows": counts["scheduled"],
        "cancelled_rows": counts["cancelled"],
        "not_arrived_rows": counts["not_arrived"],
        "cleaned_rows": counts["cleaned"],
        "carriers": len(results.carriers),
        "mean_arr_delay_min": round(counts["arr_delay_min"] / counts["cleaned"], 2),
        "share_late_15": round(counts["late"] / counts["cleaned"], 4),
        "worst_month": int(max(results.months, key=_delay)["month"]),
        "worst_carrier": max(results.carriers, key=_delay)["carrier"],
        "best_carrier": min(results.carriers, key=_delay)["carrier"],
    }


def render(results: Results, summary: Mapping[str, Any], *, picture: bytes, run_id: str, checks: int) -> str:
    """The page as HTML that needs no other file: it contains its style and chart."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"minutes": _minutes, "percent": lambda share: f"{float(share):.1%}"}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        summary=summary,
        names=results.names,
        month_names=MONTH_NAMES,
        carriers=sorted(results.carriers, key=_delay, reverse=True),
        months=results.months,
        routes=results.routes,
        weather=sorted(results.of("weather"), key=_delay, reverse=True),
        ages=sorted(results.of("plane_age"), key=lambda row: _AGES.index(row["value"])),
        scale=max(abs(_delay(row)) for row in _all_rows(results)),
        picture=base64.b64encode(picture).decode("ascii"),
        checks=checks,
        late_min=steps.LATE_MIN,
        least_flights=tables.LEAST_FLIGHTS_OF_A_ROUTE,
        run_id=run_id,
    )


def _all_rows(results: Results) -> Sequence[Row]:
    return [*results.carriers, *results.months, *results.routes, *results.of("weather"), *results.of("plane_age")]


def _write(target: Path, text: str) -> str:
    with attempt(target) as path:
        path.write_text(text, encoding="utf-8")
    return str(target)


def _delay(row: Row) -> float:
    return float(row["mean_arr_delay_min"])


def _minutes(value: str | float) -> str:
    return f"{float(value):.1f}".replace("-", "\N{MINUS SIGN}")
