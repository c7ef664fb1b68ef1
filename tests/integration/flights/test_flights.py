"""The flights DAG on real Spark and the whole year: its tables equal pandas, and a re-run writes the same bytes."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from scheduler import DAG
from scheduler.dagfiles.load import load
from scheduler.exceptions import FailTask

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAGS_FOLDER = Path(__file__).parents[3] / "dags"
# As Paceline writes it; the colons and the plus are what Spark and Hadoop could stumble over.
RUN_ID = "manual__2026-08-19T12:00:00+00:00"
TABLES = ("carrier_delays.csv", "monthly.csv", "worst_routes.csv", "conditions.csv")


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


class Results:
    """The results of the tasks so far, stored as JSON as the XComs are."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def xcom_push(self, task_id: str, value: object) -> None:
        self._values[task_id] = json.dumps(value)

    def xcom_pull(self, *, task_ids: str, key: str, default: object) -> Any:
        return json.loads(self._values[task_ids]) if key == "return_value" else default


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its folder, what its last task returned, and the tables' bytes of two runs of the same id."""

    folder: Path
    report: dict[str, Any]
    first: dict[str, bytes]
    second: dict[str, bytes]


def execute(dag: DAG, spark: "SparkSession") -> dict[str, Any]:
    """Run every task of the DAG in order, each with a session of its own, and return what the last one returned."""
    results = Results()
    last: Any = None
    done: set[str] = set()
    for task in dag.tasks:
        assert task.upstream_task_ids <= done, f"{task.task_id} would run before its upstream"
        context = {"ti": results, "run_id": RUN_ID, "spark": spark.newSession()}
        last = task.render(context).execute(context)
        results.xcom_push(task.task_id, last)
        done.add(task.task_id)
    assert isinstance(last, dict)
    return last


@pytest.fixture(scope="module")
def run(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    home = tmp_path_factory.mktemp("home")
    folder = home / "data" / "flights" / RUN_ID
    dag = load(DAGS_FOLDER, "flights.py")["flights"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_HOME", str(home))
        execute(dag, spark)
        first = {name: (folder / name).read_bytes() for name in TABLES}
        report = execute(dag, spark)
        yield Run(folder, report, first, {name: (folder / name).read_bytes() for name in TABLES})


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


def test_carrier_delays_equal_pandas(run: Run, flown: "pd.DataFrame") -> None:
    header = run.first["carrier_delays.csv"].splitlines()[0]

    assert header == b"carrier,flights,mean_dep_delay_min,mean_arr_delay_min,share_late_15"
    assert rows(run.first["carrier_delays.csv"]) == printed(expected(flown, "carrier"))


def test_the_carriers_flights_add_up_to_the_cleaned_rows(run: Run) -> None:
    carriers = rows(run.first["carrier_delays.csv"])
    summary = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))

    assert len(carriers) == 16
    assert sum(int(row[1]) for row in carriers) == summary["cleaned_rows"] == 327_346
    assert run.report == {"carriers": 16, "rows": 327_346, "report": str(run.folder / "report.html")}


def test_monthly_equals_pandas(run: Run, flown: "pd.DataFrame") -> None:
    months = rows(run.first["monthly.csv"])

    assert [[row[0], *row[3:]] for row in months] == printed(expected(flown, "month"))
    assert sum(int(row[1]) for row in months) == 336_776
    assert sum(int(row[2]) for row in months) == 8_255


def test_worst_routes_equal_pandas(run: Run, flown: "pd.DataFrame") -> None:
    routes = expected(flown, "origin", "dest")
    worst = routes[routes["flights"] >= 365].sort_values("mean_arr_delay_min", ascending=False).head(20)

    assert [[*row[:2], *row[3:]] for row in rows(run.first["worst_routes.csv"])] == printed(worst)


def test_conditions_by_hour_and_by_age_of_the_plane_equal_pandas(run: Run, flown: "pd.DataFrame") -> None:
    import pandas as pd
    from flights_parts import source

    planes = pd.read_csv(source.data_folder() / "planes.csv").rename(columns={"year": "built"})
    joined = flown.merge(planes[["tailnum", "built"]], on="tailnum", how="left")
    young = int((joined["year"] - joined["built"] < 5).sum())
    conditions = rows(run.first["conditions.csv"])

    assert [row[1:] for row in conditions if row[0] == "hour"] == printed(expected(flown, "hour"))
    assert [row[2] for row in conditions if row[1] == "under 5 years"] == [str(young)]


def test_running_the_same_run_again_writes_the_same_bytes(run: Run) -> None:
    assert run.second == run.first


def test_the_run_folder_holds_the_results_and_no_attempts(run: Run) -> None:
    names = {path.name for path in run.folder.iterdir()}

    assert names == {*TABLES, "summary.json", "report.html", "delays.png", "steps"}
    assert not list(run.folder.rglob(".attempt-*"))


def test_a_doubled_key_fails_validation_for_good_and_the_joins_too(run: Run, spark: "SparkSession", tmp_path: Path) -> None:
    from flights_parts import steps

    raw = tmp_path / "raw"
    shutil.copytree(run.folder / "steps" / "raw", raw)
    spark.read.parquet(str(raw / "airlines")).where("carrier = 'UA'").write.mode("append").parquet(str(raw / "airlines"))
    validate = load(DAGS_FOLDER, "flights.py")["flights"].task_dict["validate"]
    context = {"ti": SimpleNamespace(xcom_pull=lambda **_: str(raw)), "run_id": RUN_ID, "spark": spark.newSession()}

    with pytest.raises(FailTask, match=r"airlines: \(carrier\) is unique - broken by 1 row, such as\n.*'UA'.*2"):
        validate.render(context).execute(context)
    with pytest.raises(ValueError, match="a table joined has a doubled key"):
        steps.enrich(spark, str(raw), str(run.folder / "steps" / "clean"), tmp_path)

    assert list((tmp_path / "steps").iterdir()) == []
