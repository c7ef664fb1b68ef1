"""The flights pipeline without a scheduler: `flights_steps.py all` in one session, or one step of it, with files in between.

Run by spark-submit or Python with dags/ on the path; the results go where those of the run `bench` go.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flights_parts import expectations, report, source, steps, tables
from flights_parts.folders import run_folder
from pyspark.sql import DataFrame, SparkSession

from bench.flights_conf import CONF

RAW = ("flights", "weather", "planes", "airports", "airlines")


def everything(spark: SparkSession, folder: Path) -> None:
    """The pipeline as a script: it caches DataFrames that it uses again, and writes only the results."""
    files = source.unpack(folder)
    raw = {name: frame.cache() for name, frame in steps.ingest(spark, files).items()}
    checks = len(expectations.check_raw(**raw).results)
    cleaned = steps.clean(raw["flights"], raw["weather"])
    enriched = steps.enrich(cleaned["flights"], cleaned["weather"], raw["planes"], raw["airports"], raw["airlines"]).cache()
    if enriched.count() != cleaned["counts"]["cleaned"]:
        raise ValueError("The joins lost or doubled a flight.")
    sums = steps.aggregate_month(enriched, None).cache()
    tables.carrier_table(sums, folder)
    tables.monthly_table(sums, cleaned["counts"], folder)
    tables.route_table(sums, folder)
    tables.condition_table(sums, folder)
    names = {row["carrier"]: row["name"] for row in raw["airlines"].collect()}
    report.write_report(folder, "bench", names=names, counts=cleaned["counts"], checks=checks)
    source.delete(files)


class Step:
    """One task, which reads the files that others wrote under `steps/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.between = folder / "steps"

    def unpack(self) -> None:
        self.between.mkdir()
        self._note("files", source.unpack(self.folder))

    def ingest(self) -> None:
        for name, frame in steps.ingest(_session(), self._noted("files")).items():
            self._write(frame, name)

    def validate(self) -> None:
        self._note("checks", len(expectations.check_raw(**{name: self._read(name) for name in RAW}).results))

    def clean(self) -> None:
        cleaned = steps.clean(self._read("flights"), self._read("weather"))
        self._write(cleaned["flights"], "cleaned_flights")
        self._write(cleaned["weather"], "cleaned_weather")
        self._note("counts", cleaned["counts"])

    def enrich(self) -> None:
        names = ("cleaned_flights", "cleaned_weather", "planes", "airports", "airlines")
        self._write(steps.enrich(*(self._read(name) for name in names)), "enriched")

    def month(self, number: str) -> None:
        self._write(steps.aggregate_month(self._read("enriched"), int(number)), f"month_{number}")

    def carrier_table(self) -> None:
        tables.carrier_table(self._months(), self.folder)

    def monthly_table(self) -> None:
        tables.monthly_table(self._months(), self._noted("counts"), self.folder)

    def route_table(self) -> None:
        tables.route_table(self._months(), self.folder)

    def condition_table(self) -> None:
        tables.condition_table(self._months(), self.folder)

    def report(self) -> None:
        import pandas as pd

        airlines = pd.read_parquet(self.between / "airlines")
        names = dict(zip(airlines["carrier"], airlines["name"], strict=True))
        counts, checks = self._noted("counts"), self._noted("checks")
        report.write_report(self.folder, "bench", names=names, counts=counts, checks=checks)

    def _months(self) -> DataFrame:
        return _session().read.parquet(*(f"{self.between}/month_{number}" for number in range(1, 13)))

    def _read(self, name: str) -> DataFrame:
        return _session().read.parquet(f"{self.between}/{name}")

    def _write(self, frame: DataFrame, name: str) -> None:
        frame.write.parquet(f"{self.between}/{name}")

    def _note(self, name: str, value: Any) -> None:
        (self.between / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")

    def _noted(self, name: str) -> Any:
        return json.loads((self.between / f"{name}.json").read_text(encoding="utf-8"))


def _session() -> SparkSession:
    return SparkSession.builder.getOrCreate()


def _configured() -> SparkSession:
    return SparkSession.builder.config(map=CONF).getOrCreate()


def main() -> None:
    folder = run_folder("bench")
    name, *arguments = sys.argv[1].split(":")
    if name == "all":
        everything(_configured(), folder)
    else:
        step: Callable[..., None] = getattr(Step(folder), name)
        step(*arguments)


if __name__ == "__main__":
    main()
