"""`paceline dags test`: a DAG in this process, without database and broker."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.airflow import hook
from scheduler.cli import paceline
from scheduler.embedded.stack import PACELINE

HEAD = "from paceline import DAG, task\nfrom paceline.exceptions import SkipTask\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Write DAG files and run `paceline dags test ...`; the database and broker do not exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))

    def call(files: dict[str, str], *arguments: str) -> Result:
        folder = tmp_path / "dags"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(HEAD + text)
        env = {
            "PACELINE_DAGS_FOLDER": str(folder),
            "PACELINE_DATABASE_URL": "postgresql://127.0.0.1:1/none",
            "PACELINE_BROKER_URL": "redis://127.0.0.1:1/0",
        }
        return CliRunner().invoke(paceline, ["dags", "test", *arguments], env=env)

    return call


SUM = """
with DAG("total"):
    @task
    def numbers(): return [1, 2, 3]
    @task
    def add(values, ds=None, params=None): print("adding"); return {"sum": sum(values), "ds": ds}
    add(numbers())
"""


def test_results_are_passed_on_and_dates_are_those_requested(run: Callable[..., Result]) -> None:
    done = run({"a.py": SUM}, "total", "--date", "2025-03-01T00:00:00+00:00", "--json")

    result = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (result["state"], result["run_id"]) == ("success", "test__2025-03-01T00:00:00+00:00")
    assert [(task["task_id"], task["state"], task["result"]) for task in result["tasks"]] == [
        ("numbers", "success", [1, 2, 3]),
        ("add", "success", {"sum": 6, "ds": "2025-03-01"}),
    ]
    assert "adding" in done.stderr


def test_a_failure_fails_its_downstream_tasks_and_is_exit_code_1(run: Callable[..., Result]) -> None:
    text = """
with DAG("broken"):
    @task
    def bad(): raise ValueError("no such thing")
    @task
    def after(): pass
    @task(trigger_rule="all_done")
    def always(): pass
    first = bad()
    first >> after()
    first >> always()
"""
    done = run({"a.py": text}, "broken", "--json")

    assert done.exit_code == 1
    tasks = {task["task_id"]: task for task in json.loads(done.stdout)["tasks"]}
    assert {name: task["state"] for name, task in tasks.items()} == {
        "bad": "failed",
        "after": "upstream_failed",
        "always": "success",
    }
    assert tasks["bad"]["reason"] == "ValueError: no such thing"


def test_a_skip_is_carried_on(run: Callable[..., Result]) -> None:
    text = """
with DAG("skips"):
    @task
    def leave(): raise SkipTask("not today")
    @task
    def after(): pass
    leave() >> after()
"""
    done = run({"a.py": text}, "skips")

    assert done.exit_code == 0
    assert "leave: skipped: not today" in done.stdout
    assert "after: skipped: " in done.stdout


def test_a_result_that_a_worker_refuses_is_refused(run: Callable[..., Result]) -> None:
    done = run({"a.py": 'with DAG("odd"):\n    @task\n    def make(): return object()\n    make()\n'}, "odd")

    assert done.exit_code == 1
    assert "XComError" in done.stdout


def test_conf_reaches_the_tasks(run: Callable[..., Result]) -> None:
    text = 'with DAG("conf"):\n    @task\n    def show(conf=None): return conf["day"]\n    show()\n'

    done = run({"a.py": text}, "conf", "--conf", '{"day": 3}', "--json")

    assert json.loads(done.stdout)["tasks"][0]["result"] == 3


def test_another_broken_file_does_not_matter_and_an_error_of_its_own_file_is_reported(run: Callable[..., Result]) -> None:
    files = {"broken.py": "dag = 1 / 0  # lost\n", "good.py": SUM}

    assert run(files, "total").exit_code == 0
    lost = run(files, "lost")
    assert lost.exit_code == 2
    assert "broken.py, which mentions 'lost', cannot be read: line 3: ZeroDivisionError" in lost.stderr
    nowhere = run(files, "nowhere")
    assert nowhere.exit_code == 3
    assert "defines a DAG 'nowhere'" in nowhere.stderr


def test_tasks_see_the_home(run: Callable[..., Result], tmp_path: Path) -> None:
    text = 'import os\nwith DAG("home"):\n    @task\n    def where(): return os.environ["PACELINE_HOME"]\n    where()\n'

    done = run({"a.py": text}, "home", "--json")

    assert json.loads(done.stdout)["tasks"][0]["result"] == str(tmp_path / "home") == os.environ["PACELINE_HOME"]


def test_each_task_gets_one_try_and_its_execution_timeout(run: Callable[..., Result]) -> None:
    text = """
import time
from datetime import timedelta
with DAG("slow"):
    @task(retries=3, execution_timeout=timedelta(seconds=0.05))
    def sleep(): time.sleep(60)
    sleep()
"""
    done = run({"a.py": text}, "slow", "--json")

    (sleep,) = json.loads(done.stdout)["tasks"]
    assert sleep["state"] == "failed"
    assert sleep["reason"] == "TaskTimeout: It ran longer than its execution_timeout of 0.05 s."


MAPPED = """
from paceline import task_group, setup, teardown
with DAG("mapped"):
    @task
    def numbers(): return [1, 2]
    @task(map_index_template="n {{ ti.map_index }}")
    def twice(x): return 2 * x
    @task
    def pair(x, y): return [x, y]
    @task
    def total(values): return sum(values)
    @task_group
    def steps(x):
        return twice.override(task_id="last")(twice(x))
    @setup
    def up(): pass
    @teardown
    def down(): raise ValueError("left behind")
    with up() >> down():
        total(twice.expand(x=numbers()))
    pair.expand(x=numbers(), y={"a": 1})
    total.override(task_id="of_group")(steps.expand(x=[1, 2, 3]))
    twice.override(task_id="none").expand(x=[])
    twice.override(task_id="mapped").expand(x=numbers().map(lambda n: n + 1).concat(numbers()))
"""


def test_mapped_tasks_groups_setups_and_teardowns(run: Callable[..., Result]) -> None:
    done = run({"a.py": MAPPED}, "mapped", "--json")

    result = json.loads(done.stdout)
    results: dict[str, list[object]] = {}
    for task in result["tasks"]:
        results.setdefault(task["task_id"], []).append(task["result"])
    states = {(task["task_id"], task["map_index"]): task["state"] for task in result["tasks"]}
    assert results["total"] == [6]
    assert results["pair"] == [[1, ["a", 1]], [2, ["a", 1]]]
    assert results["of_group"] == [24]
    assert results["mapped"] == [4, 6, 2, 4]
    assert states["none", -1] == "skipped"
    assert states["down", -1] == "failed"
    assert {task["map_label"] for task in result["tasks"] if task["task_id"] == "twice"} == {"n 0", "n 1"}
    assert result["state"] == "success"  # a teardown that failed does not count


def test_branches_skip_tasks_that_they_do_not_choose(run: Callable[..., Result]) -> None:
    text = """
from paceline import TaskGroup
from paceline.operators import EmptyOperator
with DAG("branch"):
    @task.branch
    def choose(): return "left"
    with TaskGroup("left") as left: EmptyOperator(task_id="a")
    right = EmptyOperator(task_id="right")
    join = EmptyOperator(task_id="join", trigger_rule="none_failed_min_one_success")
    choose() >> [left, right] >> join
"""
    done = run({"a.py": text}, "branch", "--json")

    assert {task["task_id"]: task["state"] for task in json.loads(done.stdout)["tasks"]} == {
        "choose": "success",
        "left.a": "success",
        "right": "skipped",
        "join": "success",
    }


def test_a_value_that_cannot_be_mapped_over_fails_its_task(run: Callable[..., Result]) -> None:
    text = """
with DAG("wrong"):
    @task
    def number(): return 3
    @task
    def show(x): pass
    show.expand(x=number())
"""
    done = run({"a.py": text}, "wrong", "--json")

    tasks = {task["task_id"]: task for task in json.loads(done.stdout)["tasks"]}
    assert "is of type int, but task 'show' is mapped over it" in tasks["number"]["reason"]
    assert tasks["show"]["state"] == "upstream_failed"


LEAKS = """
with DAG("leaks"):
    @task
    def leak(conn=None):
        import os
        secret = conn.get("store").password
        print("printed", secret, flush=True)
        os.system(f"echo shouted {secret}; echo wailed {secret} >&2")
        raise ValueError(f"not {secret}")
    leak()
"""


def test_output_of_a_task_is_masked_on_the_terminal_too(tmp_path: Path) -> None:
    (tmp_path / "leaks.py").write_text(HEAD + LEAKS)
    environment = os.environ | {
        "PACELINE_HOME": str(tmp_path / "home"),
        "PACELINE_DAGS_FOLDER": str(tmp_path),
        "PACELINE_CONN_STORE": "postgresql://me:hunter2hunter2@host/db",
    }

    done = subprocess.run([*PACELINE, "dags", "test", "leaks"], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "hunter2" not in done.stdout + done.stderr
    assert "printed ***" in done.stdout and "shouted ***" in done.stdout and "leak: failed: ValueError: not ***" in done.stdout
    assert "wailed ***" in done.stderr and "ValueError: not ***" in done.stderr


def test_a_file_of_airflow_runs_unchanged_with_the_setting(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CORE_AIRFLOW_IMPORTS", "true")
    source = """
from airflow import DAG
from airflow.exceptions import AirflowSkipException
from airflow.operators.python import PythonOperator, get_current_context
def late():
    from airflow.models import Variable
    if Variable and get_current_context()["ds"] == "2025-03-01":
        raise AirflowSkipException
with DAG("old", schedule_interval=None):
    PythonOperator(task_id="t", python_callable=late, provide_context=True)
"""
    try:
        done = run({"a.py": source}, "old", "--date", "2025-03-01T00:00:00+00:00", "--json")
    finally:
        hook.remove()

    assert [task["state"] for task in json.loads(done.stdout)["tasks"]] == ["skipped"]
