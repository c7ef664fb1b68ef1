"""`paceline plan`: what it says about a folder before it is deployed, compared with what the deploy then does."""

import functools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.clock import Clock
from support.scenario import Scenario, dag

from scheduler.dagfiles import plan as planning
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.bundle_files import read_folder
from scheduler.dagfiles.bundles import BundleManager
from scheduler.settings import Settings
from scheduler.store.dags import bundles
from scheduler.store.db import clock
from scheduler.store.db.database import transact
from scheduler.store.read import plan as read

from .conftest import Cli

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAILY = """
from datetime import datetime
from paceline import DAG, task
from paceline.operators import BashOperator
from pathlib import Path
from lib.sums import total

HERE = Path(__file__).parent

def helper():
    return 1

with DAG("sales", schedule="{schedule}", start_date=datetime(2029, 12, 1){more}) as dag:
    @task
    def extract():
        return helper() if HERE else None

    @task
    def load(value):
        return total([value]){extra}

    load(extract()) >> BashOperator(task_id="tell", bash_command=f"cat {{HERE}}/orders.sql; {command}")
"""
SUMS = "def total(values):\n    return sum(values)\n"


def sales(schedule: str = "0 6 * * *", command: str = "echo done", more: str = "", extra: str = "") -> str:
    return DAILY.format(schedule=schedule, command=command, more=more, extra=extra)


class Deploys:
    """A folder, and a scheduler that makes its deploys live."""

    def __init__(self, scenario: Scenario, clock: Clock, cli: Cli, folder: Path) -> None:
        self.engine, self.cli, self.folder = scenario.engine, cli, folder
        self.scenario, self.clock = scenario, clock
        cache = BundleCache(
            folder.parent / "cache", StoredContents.over(functools.partial(transact, self.engine), scenario.settings), keep=2
        )
        self.manager = BundleManager(self.engine, scenario.settings, lambda: "s", cache)
        self.write("lib/sums.py", SUMS)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def deploy(self, *, is_live: bool = True) -> None:
        files = read_folder(self.folder, self.scenario.settings.bundles)
        transact(self.engine, bundles.publish, "default", files, by="ann")
        live = self.manager.run_once()
        assert live is not None and live.is_live is is_live, live

    def stored(self, version: str, code: int = 0) -> Any:
        done = self.cli("plan", "--version", version, "--json")
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    def plan(self, *options: str, code: int = 0) -> Any:
        done = self.cli("plan", str(self.folder), "--json", *options)
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    def run_until(self, end: datetime) -> None:
        """Let the scheduler create the runs that are due until then, each at its time."""
        while True:
            self.scenario.turn()
            with self.engine.connect() as connection:
                now, due = connection.exec_driver_sql(
                    """
                    select clock_timestamp(), min(case when s.planned_version_id = d.version_id then next_run_after
                                                       else clock_timestamp() end)
                      from dag_schedule s join dag d on d.dag_id = s.dag_id and d.is_active
                    """
                ).one()
            if due is None or due > end:
                self.clock.freeze(end)
                return
            if due > now:
                self.clock.freeze(due)

    def runs(self) -> dict[str, set[str]]:
        """The logical dates of the scheduled runs of each DAG."""
        with self.engine.connect() as connection:
            rows = connection.exec_driver_sql("select dag_id, logical_date from dag_run where run_type = 'scheduled'").all()
        found: dict[str, set[str]] = {}
        for dag_id, date in rows:
            found.setdefault(dag_id, set()).add(f"{date:%Y-%m-%dT%H:%M}")
        return found

    def predicted(self, dag_id: str, days: int) -> set[str]:
        """The logical dates of the runs that the live version would create in the next days."""
        with self.engine.connect() as connection:
            now = clock.now(connection)
            live = read.dags(connection, "default", now)[dag_id]
            return {f"{date:%Y-%m-%dT%H:%M}" for date in planning.dates(live.dag, live.next, now, now + timedelta(days=days))}

    def only(self) -> Any:
        """The plan of the only DAG that changes."""
        (only,) = self.plan()["dags"]
        return only


@pytest.fixture
def deploys(cli: Cli, tmp_path: Path, settings: Settings) -> Iterator[Deploys]:
    moved = Clock(settings)
    moved.freeze(NOW)
    scenario = Scenario(settings)
    scenario.add(dag("pair", {"first": [], "second": ["first"]}))
    deploys = Deploys(scenario, moved, cli, tmp_path / "etl")
    yield deploys
    deploys.manager.stop()
    scenario.close()
    moved.close()


def test_nothing_is_planned_for_what_is_live_and_all_of_it_before(deploys: Deploys) -> None:
    deploys.write("sales.py", sales())
    first = deploys.plan("--detailed-exitcode", code=2)
    assert first["live_version"] is None and first["changes"] and first["files"]["added"] == ["lib/sums.py", "sales.py"]
    (only,) = first["dags"]
    assert (only["dag_id"], only["change"], only["open_runs"]) == ("sales", "added", {})
    assert [date[:16] for date in only["created_runs"]][-1] == "2030-01-08T06:00" and not only["dropped_runs"]

    deploys.deploy()

    again = deploys.plan("--detailed-exitcode")
    assert again["live_version"] == 1 and not again["changes"] and not again["dags"] and not again["problems"]
    assert "Plan for bundle default against its live version 1: no changes" in deploys.cli("plan", str(deploys.folder)).stdout


@pytest.mark.parametrize(("before", "after", "tasks"), [
    ("def helper():\n    return 1", "def helper():\n    return 2", ["extract"]),
    ("total([value])", "total([value, 0])", ["load"]),
    ("def helper():", "# a comment moves all lines\n\ndef helper():", []),
])  # fmt: skip
def test_the_tasks_whose_code_changes_are_named(deploys: Deploys, before: str, after: str, tasks: list[str]) -> None:
    deploys.write("sales.py", sales())
    deploys.deploy()
    assert before in sales()
    deploys.write("sales.py", sales().replace(before, after))

    plan = deploys.plan()

    assert [dag["difference"]["code"] for dag in plan["dags"]] == ([tasks] if tasks else [])
    assert plan["files"]["changed"] == ["sales.py"]


def test_a_helper_module_is_code_of_the_tasks_that_call_it(deploys: Deploys) -> None:
    deploys.write("sales.py", sales())
    deploys.deploy()
    deploys.write("lib/sums.py", SUMS.replace("sum(values)", "sum(values) + 0"))

    found = deploys.only()

    assert found["difference"]["code"] == ["load"] and not found["difference"]["arguments"]


def test_arguments_edges_and_tasks_are_compared(deploys: Deploys) -> None:
    deploys.write("sales.py", sales())
    deploys.deploy()
    new = "    BashOperator(task_id='new', bash_command='true')\n\n    @task(retries=3)\n    def extract"
    text = sales(command="echo all", more=', tags=["gold"]').replace("    @task\n    def extract", new)
    deploys.write("sales.py", text.replace("load(extract()) >> ", "load(extract())\n    "))

    found = deploys.only()["difference"]

    assert found["added_tasks"] == ["new"] and found["removed_edges"] == [["load", "tell"]] and not found["added_edges"]
    assert found["arguments"]["tell"] == [
        {"name": "bash_command", "before": "'cat ./orders.sql; echo done'", "now": "'cat ./orders.sql; echo all'"}
    ]
    assert found["arguments"]["extract"] == [{"name": "retries", "before": 0, "now": 3}]
    assert found["fields"] == [{"name": "tags", "before": [], "now": ["gold"]}]


def test_a_new_schedule_names_the_runs_of_the_next_days(deploys: Deploys) -> None:
    deploys.write("sales.py", sales())
    deploys.deploy()
    deploys.scenario.turn()
    deploys.write("sales.py", sales(schedule="0 6,18 * * *"))

    found = deploys.only()

    days = [NOW + timedelta(days=day) for day in range(7)]
    assert [date[:16] for date in found["created_runs"]] == [f"{day:%Y-%m-%d}T18:00" for day in days]
    assert not found["dropped_runs"]
    deploys.write("sales.py", sales(schedule="@monthly"))
    assert len(deploys.only()["dropped_runs"]) == 7


def test_open_runs_keep_their_version_or_move_and_a_removed_dag_creates_no_more(deploys: Deploys) -> None:
    deploys.write("sales.py", sales())
    deploys.write("other.py", "from paceline import DAG\nwith DAG('other'):\n    pass\n")
    deploys.deploy()
    assert deploys.cli("dags", "trigger", "sales").exit_code == 0
    deploys.write("sales.py", sales(extra=" + 1"))
    found = deploys.only()
    assert found["open_runs"] == {"1": 1} and found["keeps_versions"]
    assert "1 open run keeps version 1 of the DAG" in deploys.cli("plan", str(deploys.folder)).stdout

    deploys.write("sales.py", sales(more=", disable_bundle_versioning=True"))
    assert not deploys.only()["keeps_versions"]

    (deploys.folder / "sales.py").unlink()
    found = deploys.only()
    assert found["change"] == "removed" and len(found["dropped_runs"]) == 8 and found["open_runs"] == {"1": 1}


def test_a_paused_dag_creates_no_runs(deploys: Deploys) -> None:
    deploys.write("sales.py", sales(more=", is_paused_upon_creation=True"))
    found = deploys.only()
    assert found["is_paused"] and not found["created_runs"]


def test_what_would_be_refused_exits_with_one(deploys: Deploys) -> None:
    deploys.write("sales.py", sales())
    deploys.deploy()
    deploys.write("sales.py", "from paceline import DAG\n\n1 / 0\n")
    deploys.write("pair.py", "from paceline import DAG\nwith DAG('pair'):\n    pass\n")

    plan = deploys.plan("--detailed-exitcode", code=1)

    assert [(one["file"], one["line"]) for one in plan["problems"]] == [("sales.py", 3), ("pair.py", None)]
    assert "'pair' is also in pair.py" in plan["problems"][1]["message"] and "removed" not in [
        dag["change"] for dag in plan["dags"]
    ]


def test_a_folder_without_a_dag_file_would_be_refused(deploys: Deploys) -> None:
    assert deploys.plan(code=1)["problems"][0]["message"].startswith("The bundle has no DAG file")
    assert "! The bundle has no DAG file" in deploys.cli("plan", str(deploys.folder)).stdout


def test_a_stored_version_has_the_plan_of_its_folder(deploys: Deploys) -> None:
    """The plan of a rollback, and of a refused version, is that of the same files in a folder, which are parsed again."""
    deploys.write("sales.py", sales())
    deploys.write("other.py", "from paceline import DAG\nwith DAG('other', schedule='@daily'):\n    pass\n")
    deploys.deploy()
    (deploys.folder / "other.py").unlink()
    deploys.write("sales.py", sales(schedule="0 6,18 * * *", command="echo all", extra=" + 1", more=", tags=['gold']"))
    deploys.write("lib/sums.py", SUMS.replace("sum(values)", "sum(values) + 0"))
    deploys.write("new.py", "from paceline import DAG\nwith DAG('new', schedule='@hourly'):\n    pass\n")
    deploys.deploy()
    assert deploys.cli("dags", "trigger", "sales").exit_code == 0
    deploys.write("broken.py", "from paceline import DAG\n\n1 / 0\n")
    broken = deploys.plan(code=1)
    deploys.deploy(is_live=False)
    deploys.write("sales.py", sales())
    deploys.write("other.py", "from paceline import DAG\nwith DAG('other', schedule='@daily'):\n    pass\n")
    deploys.write("lib/sums.py", SUMS)
    (deploys.folder / "new.py").unlink()
    (deploys.folder / "broken.py").unlink()
    back = deploys.plan()

    stored = deploys.stored("1")

    assert {name: stored[name] for name in back} == back
    assert [one["change"] for one in back["dags"]] == ["removed", "added", "changed"]
    assert (stored["version_number"], stored["since"], [one["version_number"] for one in stored["versions"]]) == (1, 2, [3, 2, 1])
    refused = deploys.stored("3", code=1)
    assert {name: refused[name] for name in broken} == broken
    done = deploys.cli("plan", "--version", "1")
    assert done.stdout.startswith("Plan for version 1 of bundle default against its live version 2: ")


def test_the_live_version_is_compared_with_the_one_before_it(deploys: Deploys) -> None:
    deploys.write("sales.py", sales())
    deploys.deploy()
    first = deploys.stored("1")
    deploys.write("sales.py", sales(extra=" + 1"))
    deploys.deploy()

    found = deploys.stored("2")

    assert (first["since"], first["dags"][0]["change"]) == (None, "added")
    assert (found["since"], found["live_version"]) == (1, 2)
    assert [(one["change"], one["difference"]["code"]) for one in found["dags"]] == [("changed", ["load"])]
    assert "What version 2 of bundle default changed since version 1" in deploys.cli("plan", "--version", "2").stdout
    assert deploys.cli("plan").exit_code == deploys.cli("plan", ".", "--version", "1").exit_code == 2


def test_missing_pools_queues_and_connections_are_named(deploys: Deploys) -> None:
    deploys.write("sales.py", """
from paceline import DAG, task
from paceline.operators import SparkSubmitOperator

with DAG("sales"):
    @task(pool="big", queue="gpu")
    def extract():
        return 1

    extract() >> SparkSubmitOperator(task_id="submit", application="x.py", conn_id="cluster")
""")  # fmt: skip
    with deploys.engine.begin() as connection:  # a worker that lives at the time of the test
        connection.exec_driver_sql("update process set heartbeat_at = clock_timestamp() where kind = 'worker'")
    assert deploys.plan()["missing"] == {"pools": ["big"], "queues": ["gpu", "spark"], "connections": ["cluster"]}


def test_assets_that_lose_their_producer_or_consumer_are_named(deploys: Deploys) -> None:
    def of(name: str, schedule: str, outlets: str) -> str:
        return (
            "from paceline import DAG, Asset\nfrom paceline.operators import EmptyOperator\n"
            f"with DAG('{name}', schedule={schedule}):\n    EmptyOperator(task_id='one', outlets={outlets})\n"
        )

    deploys.write("makes.py", of("makes", "None", "[Asset('s3://b/orders')]"))
    deploys.write("reads.py", of("reads", "[Asset('s3://b/orders')]", "[Asset('s3://b/report')]"))
    deploys.write("sends.py", of("sends", "[Asset('s3://b/report')]", "[]"))
    deploys.deploy()
    deploys.write("makes.py", of("makes", "None", "[]"))
    deploys.write("sends.py", of("sends", "None", "[]"))

    plan = deploys.plan()

    assert plan["assets_without_producer"] == ["s3://b/orders"] and plan["assets_without_consumer"] == ["s3://b/report"]
    text = deploys.cli("plan", str(deploys.folder)).stdout
    assert "? No task updates s3://b/orders any more, and a DAG waits for it." in text


def test_markdown_is_a_table_for_a_pull_request(deploys: Deploys) -> None:
    deploys.write("sales.py", sales())
    deploys.deploy()
    deploys.write("sales.py", sales(schedule="0 7 * * *"))
    text = deploys.cli("plan", str(deploys.folder), "--markdown").stdout
    assert "### Plan for bundle default against its live version 1: 1 changed DAG" in text
    assert "| ~ | `sales` | schedule: 0 6 * * * -> 0 7 * * *<br>" in text


def test_a_plan_stores_nothing(deploys: Deploys) -> None:
    def count() -> Any:
        with deploys.engine.connect() as connection:
            return connection.exec_driver_sql(
                "select (select count(*) from bundle), (select count(*) from bundle_version), (select count(*) from dag_version)"
            ).one()

    before = count()
    deploys.write("sales.py", sales())
    deploys.plan()
    assert count() == before


def test_a_plan_against_a_web_process_is_that_of_its_database(deploys: Deploys, web: Callable[..., dict[str, str]]) -> None:
    """From a machine that has the folder and a token alone."""
    there = web("ci", default="operator") | {"PACELINE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    deploys.write("sales.py", sales())
    new = deploys.cli("plan", str(deploys.folder), "--json", **there)
    assert (new.exit_code, json.loads(new.stdout)["dags"]) == (0, deploys.plan()["dags"])
    deploys.deploy()
    assert deploys.cli("dags", "trigger", "sales").exit_code == 0
    deploys.write("sales.py", sales(schedule="0 7 * * *", more=', default_args={"pool": "big"}', extra=" + 1"))
    deploys.write("pair.py", "from paceline import DAG\nwith DAG('pair'):\n    pass\n")

    done = deploys.cli("plan", str(deploys.folder), "--json", "--detailed-exitcode", **there)

    own = deploys.plan(code=1)
    assert (done.exit_code, json.loads(done.stdout)) == (1, own)
    assert own["problems"] and own["dags"][-1]["open_runs"] == {"1": 1} and own["missing"]["pools"] == ["big"]
    (deploys.folder / "pair.py").unlink()
    texts = [deploys.cli("plan", str(deploys.folder), "--markdown", **where).stdout for where in ({}, there)]
    assert texts[0] == texts[1] != ""
    assert deploys.cli("plan", str(deploys.folder), "--detailed-exitcode", **there).exit_code == 2
    other = deploys.cli("plan", str(deploys.folder), "--bundle", "other", **there)
    assert (other.exit_code, "on this bundle by its tag" in other.stderr) == (1, True)
    away = deploys.cli("plan", str(deploys.folder), **there | {"PACELINE_URL": "http://127.0.0.1:1"})
    assert (away.exit_code, "does not answer" in away.stderr) == (4, True)


PAIRS = {
    "later": ('"0 6 * * *"', '"0 7 * * *"'),
    "rarer": ('"@daily"', '"@weekly"'),
    "oftener": ('"@weekly"', '"0 */6 * * *"'),
    "interval": ("timedelta(hours=12)", "timedelta(hours=8)"),
    "from_interval": ("timedelta(days=1)", '"@daily"'),
    "on": ("None", '"@daily"'),
    "off": ('"@daily"', "None"),
    "once": ('"@daily"', '"@once"'),
    "from_once": ('"@once"', '"@daily"'),
    "workdays": ('"0 0 * * *"', '"0 12 * * 1-5"'),
    "monthly": ('"@monthly"', '"0 0 1,3,5 * *"'),
    "starts_later": ('"@daily"', '"@daily", start_date=datetime(2030, 1, 5)'),
    "started_earlier": ('"@daily", start_date=datetime(2030, 1, 5)', '"@daily"'),
    "ends": ('"@daily"', '"@daily", end_date=datetime(2030, 1, 4)'),
    "caught_up": ('"@daily"', '"@daily", catchup=True'),
    "no_more_caught_up": ('"@daily", catchup=True', '"0 3 * * *"'),
    "zone": ('"0 6 * * *"', '"0 6 * * *", start_date=datetime(2029, 12, 20, tzinfo=ZoneInfo("America/New_York"))'),
    "several": ('MultipleCronTriggerTimetable("0 1 * * *", "0 2 * * *", timezone="UTC")', '"0 2 * * *"'),
    "intervals": ('CronDataIntervalTimetable("0 4 * * *", timezone="UTC")', 'CronTriggerTimetable("0 4 * * *", timezone="UTC")'),
    "same": ('"@daily"', '"@daily", tags=["new"]'),
}  # fmt: skip


def scheduled(name: str, schedule: str) -> str:
    start = "" if "start_date" in schedule else ", start_date=datetime(2029, 12, 20)"
    return f'with DAG("{name}", max_active_runs=1000, schedule={schedule}{start}):\n    EmptyOperator(task_id="one")\n'


@pytest.mark.parametrize("days", [7, pytest.param(30, marks=pytest.mark.long)])
def test_the_runs_that_are_planned_are_those_that_are_then_created(deploys: Deploys, days: int) -> None:
    imports = (
        "from datetime import datetime, timedelta\nfrom zoneinfo import ZoneInfo\nfrom paceline import DAG\n"
        "from paceline.operators import EmptyOperator\nfrom paceline.timetables import (\n"
        "    CronDataIntervalTimetable, CronTriggerTimetable, MultipleCronTriggerTimetable)\n\n"
    )
    deploys.write("runs.py", imports + "".join(scheduled(name, old) for name, (old, _) in PAIRS.items()))
    deploys.deploy()
    deploys.run_until(NOW)
    deploys.write("runs.py", imports + "".join(scheduled(name, new) for name, (_, new) in PAIRS.items()))
    planned = {one["dag_id"]: one for one in deploys.plan("--days", str(days))["dags"]}
    before = {dag_id: deploys.predicted(dag_id, days) for dag_id in PAIRS}
    known = deploys.runs()

    deploys.deploy()
    deploys.run_until(NOW + timedelta(days=days))

    after = deploys.runs()
    for dag_id in PAIRS:
        one = planned.get(dag_id, {"created_runs": [], "dropped_runs": []})
        created, dropped = ({date[:16] for date in one[f"{what}_runs"]} for what in ("created", "dropped"))
        new = after.get(dag_id, set()) - known.get(dag_id, set())
        assert new == (before[dag_id] - dropped) | created, dag_id
    assert sum(map(len, after.values())) - sum(map(len, known.values())) > 10 * days
    assert sum(bool(one["created_runs"]) for one in planned.values()) > 10
