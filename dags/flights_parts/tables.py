"""The result tables: sums over the aggregates of the months, as CSV files that have the same bytes if the run is repeated."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flights_parts.folders import attempt

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame

FIGURES = ("flights", "mean_dep_delay_min", "mean_arr_delay_min", "share_late_15")
WORST_ROUTES = 20
# Without routes that are flown less than daily: one bad evening would put them on top.
LEAST_FLIGHTS_OF_A_ROUTE = 365
#: The Iceberg tables, in the order of the tasks that compute them.
PUBLISHED = ("flights.carrier_delays", "flights.monthly", "flights.worst_routes", "flights.conditions")
_SUMS = ("flights", "dep_delay_min", "arr_delay_min", "late")


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a group of flights: counts, and delays summed in whole minutes."""

    flights: int
    dep_delay_min: int
    arr_delay_min: int
    late: int

    @property
    def mean_arr_delay_min(self) -> float:
        """Mean arrival delay in minutes, early arrivals counted as negative."""
        return self.arr_delay_min / self.flights

    def columns(self) -> tuple[str, ...]:
        """The columns of FIGURES as printed: minutes with two decimals, the share with four."""
        return (
            str(self.flights),
            f"{self.dep_delay_min / self.flights:.2f}",
            f"{self.mean_arr_delay_min:.2f}",
            f"{self.late / self.flights:.4f}",
        )


def carrier_table(sums: "DataFrame", folder: Path) -> str:
    """Write carrier_delays.csv, one row per carrier."""
    carriers = _summed(sums, ["carrier"])
    rows = [(carrier, *figures.columns()) for (carrier,), figures in sorted(carriers.items())]
    return write_csv(folder / "carrier_delays.csv", ("carrier", *FIGURES), rows)


def monthly_table(sums: "DataFrame", counts: Mapping[str, Any], folder: Path) -> str:
    """Write monthly.csv, one row per month, with scheduled, cancelled and flown flights."""
    planned = {month["month"]: (month["scheduled"], month["cancelled"]) for month in counts["months"]}
    flown = _summed(sums.where("carrier IS NOT NULL"), ["month"])
    rows = [(month, *planned[month], *figures.columns()) for (month,), figures in sorted(flown.items())]
    return write_csv(folder / "monthly.csv", ("month", "scheduled", "cancelled", *FIGURES), rows)


def route_table(sums: "DataFrame", folder: Path) -> str:
    """Write worst_routes.csv: the daily routes with the longest mean arrival delay, longest first."""
    routes = _summed(sums, ["origin", "dest", "dest_name"])
    daily = [(route, figures) for route, figures in routes.items() if figures.flights >= LEAST_FLIGHTS_OF_A_ROUTE]
    worst = sorted(daily, key=lambda entry: (-entry[1].mean_arr_delay_min, entry[0][:2]))[:WORST_ROUTES]
    rows = [(origin, dest, name or "", *figures.columns()) for (origin, dest, name), figures in worst]
    return write_csv(folder / "worst_routes.csv", ("origin", "dest", "dest_name", *FIGURES), rows)


def condition_table(sums: "DataFrame", folder: Path) -> str:
    """Write conditions.csv: the delays by hour of departure, by weather and by the plane's age."""
    rows = [
        (condition, value, *figures.columns())
        for condition in ("hour", "weather", "plane_age")
        for (value,), figures in sorted(_summed(sums, [condition]).items())
    ]
    return write_csv(folder / "conditions.csv", ("condition", "value", *FIGURES), rows)


def publish(paths: Iterable[str], catalog: "Catalog") -> None:
    """Replace the rows of the PUBLISHED tables by those of the CSV files."""
    from pyarrow.csv import read_csv

    catalog.create_namespace_if_not_exists("flights")
    for name, path in zip(PUBLISHED, paths, strict=True):
        rows = read_csv(path)
        table = catalog.create_table_if_not_exists(name, rows.schema)
        if table.current_snapshot() is None:
            table.append(rows)
        else:
            table.overwrite(rows)


def write_csv(target: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a CSV file atomically, and return its path."""
    with attempt(target) as path, path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return str(target)


def read_csv(path: str) -> list[dict[str, str]]:
    """Read a table as one dictionary per row."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _summed(aggregates: "DataFrame", keys: list[str]) -> Mapping[tuple[object, ...], Figures]:
    # Each row of an aggregate belongs to one grouping only. If the first key is null, it belongs to another one.
    from pyspark.sql import functions as F

    summed = aggregates.where(F.col(keys[0]).isNotNull()).groupBy(*keys).agg(*(F.sum(name).alias(name) for name in _SUMS))
    return {tuple(row[key] for key in keys): Figures(*(row[name] for name in _SUMS)) for row in summed.collect()}
