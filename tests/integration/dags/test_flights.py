"""The flights DAG on real Spark and the whole year: its tables equal pandas, and a re-run writes the same bytes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import pandas as pd

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1000)]

TESTS = Path(__file__).parents[2]
# As Paceline writes it; Spark and Hadoop could misread the colons and the plus.
RUN_ID = "manual__2026-08-19T12:00:00+00:00"
TABLES = ("carrier_delays.csv", "monthly.csv", "worst_routes.csv", "conditions.csv")
#: A run of the DAG and one of another that doubles a key, as a worker would run them, in one process with one JVM.
SCRIPT = """
import json, sys
from datetime import UTC, datetime

from paceline import dag, task
from paceline.authoring.context import DagRun
from scheduler.dagfiles.load import load
from scheduler.serialized.authored import from_dag
from scheduler.settings import Settings
from scheduler.testing.in_memory.run import MemoryRun

settings, run_id = Settings.load(), sys.argv[1]

def run(dag):
    plan = from_dag(dag, file="flights.py", core=settings.core, scheduler=settings.scheduler)
    now = datetime(2026, 8, 19, 12, tzinfo=UTC)
    moments = dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "start_date", "run_after"), now)
    made = MemoryRun(settings, dag, plan, DagRun(dag_id=dag.dag_id, run_id=run_id, run_type="manual", conf={}, **moments))
    return list(made.rows())

@dag(schedule=None)
def doubled():
    @task.pyspark
    def validate(spark):
        from flights_parts import expectations
        tables = {name: spark.read.parquet(url) for name, url in RAW.items()}
        tables["airlines"] = tables["airlines"].union(tables["airlines"].where("carrier = 'UA'"))
        expectations.check(*[suite for suite in expectations.suites(**tables) if suite.name == "airlines"])
    validate()

flights = load(settings.dags_folder, "flights.py")["flights"]
rows = run(flights)
RAW = {name: one.url for name, one in next(row["result"] for row in rows if row["task_id"] == "ingest").items()}
[broken] = run(doubled())
print(json.dumps({"rows": rows, "broken": broken}, default=str))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its home and folder, the result of its last task, the bytes of its tables, and the task that fails."""

    home: Path
    folder: Path
    report: dict[str, Any]
    tables: dict[str, bytes]
    broken: dict[str, Any]


def flights_run(home: Path) -> Run:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, RUN_ID],
        env={**os.environ, "PACELINE_HOME": str(home), "PACELINE_DAGS_FOLDER": str(TESTS.parent / "dags")},
        cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert {row["task_id"]: row["state"] for row in answer["rows"] if row["state"] != "success"} == {"publish": "skipped"}
    [report] = [row["result"] for row in answer["rows"] if row["task_id"] == "report"]
    folder = home / "data" / "flights" / RUN_ID
    return Run(home, folder, report, {name: (folder / name).read_bytes() for name in TABLES}, answer["broken"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return flights_run(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def flown() -> "pd.DataFrame":
    """The flights that left and arrived, as pandas reads them from the same source."""
    import pandas as pd
    from flights_parts import source

    with_delays = pd.read_csv(source.data_folder() / "flights.csv.zip").dropna(subset=["dep_delay", "arr_delay"])
    return with_delays.assign(late=with_delays["arr_delay"] >= 15)


def expected(flown: "pd.DataFrame", *keys: str) -> "pd.DataFrame":
    grouped = flown.groupby(list(keys)).agg(
        flights=("late", "size"),
        mean_dep_delay_min=("dep_delay", "mean"),
        mean_arr_delay_min=("arr_delay", "mean"),
        share_late_15=("late", "mean"),
    )
    return grouped.reset_index()


def printed(table: "pd.DataFrame") -> list[list[str]]:
    """The rows as the pipeline prints them: minutes with two decimals, shares with four."""
    decimals = {"mean_dep_delay_min": 2, "mean_arr_delay_min": 2, "share_late_15": 4}
    return [
        [f"{value:.{decimals[name]}f}" if name in decimals else str(value) for name, value in row.items()]
        for row in table.to_dict("records")
    ]


def rows(table: bytes) -> list[list[str]]:
    return [line.split(",") for line in table.decode("utf-8").splitlines()[1:]]


@pytest.mark.long
def test_carrier_delays_equal_pandas(run: Run, flown: "pd.DataFrame") -> None:
    header = run.tables["carrier_delays.csv"].splitlines()[0]

    assert header == b"carrier,flights,mean_dep_delay_min,mean_arr_delay_min,share_late_15"
    assert rows(run.tables["carrier_delays.csv"]) == printed(expected(flown, "carrier"))


@pytest.mark.long
def test_the_carriers_flights_add_up_to_the_cleaned_rows(run: Run) -> None:
    carriers = rows(run.tables["carrier_delays.csv"])
    summary = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))

    assert len(carriers) == 16
    assert sum(int(row[1]) for row in carriers) == summary["cleaned_rows"] == 327_346
    assert run.report == {"carriers": 16, "rows": 327_346, "report": str(run.folder / "report.html")}


@pytest.mark.long
def test_monthly_equals_pandas(run: Run, flown: "pd.DataFrame") -> None:
    months = rows(run.tables["monthly.csv"])

    assert [[row[0], *row[3:]] for row in months] == printed(expected(flown, "month"))
    assert sum(int(row[1]) for row in months) == 336_776
    assert sum(int(row[2]) for row in months) == 8_255


@pytest.mark.long
def test_worst_routes_equal_pandas(run: Run, flown: "pd.DataFrame") -> None:
    routes = expected(flown, "origin", "dest")
    worst = routes[routes["flights"] >= 365].sort_values("mean_arr_delay_min", ascending=False).head(20)

    assert [[*row[:2], *row[3:]] for row in rows(run.tables["worst_routes.csv"])] == printed(worst)


@pytest.mark.long
def test_conditions_by_hour_and_by_age_of_the_plane_equal_pandas(run: Run, flown: "pd.DataFrame") -> None:
    import pandas as pd
    from flights_parts import source

    planes = pd.read_csv(source.data_folder() / "planes.csv").rename(columns={"year": "built"})
    joined = flown.merge(planes[["tailnum", "built"]], on="tailnum", how="left")
    young = int((joined["year"] - joined["built"] < 5).sum())
    conditions = rows(run.tables["conditions.csv"])

    assert [row[1:] for row in conditions if row[0] == "hour"] == printed(expected(flown, "hour"))
    assert [row[2] for row in conditions if row[1] == "under 5 years"] == [str(young)]


@pytest.mark.long
def test_running_the_same_run_again_writes_the_same_bytes(run: Run) -> None:
    assert flights_run(run.home).tables == run.tables


@pytest.mark.long
def test_the_run_folder_holds_the_results_and_no_attempts_at_them(run: Run) -> None:
    names = {path.name for path in run.folder.iterdir() if path.is_file()}

    assert names == {*TABLES, "summary.json", "report.html", "delays.png"}
    assert not list(run.folder.rglob(".attempt-*"))
    assert not list(run.folder.glob("source-*"))


@pytest.mark.long
def test_a_doubled_key_fails_validation_for_good_and_names_it(run: Run) -> None:
    assert run.broken["state"] == "failed"
    assert run.broken["reason"] == (
        "2 of 2 checks failed:\n  airlines: has 16 rows - but it has 17\n"
        "  airlines: (carrier) is unique - broken by 1 row\n    {'carrier': 'UA', 'copies': 2}"
    )
