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


MIXED = """
with DAG("mixed"):
    @task
    def bad(): raise ValueError("no such thing")
    @task
    def leave(): raise SkipTask("not today")
    @task(map_index_template="n {{ ti.map_index }}")
    def twice(x): return 2 * x
    bad(), leave(), twice.expand(x=[1, 2])
"""


def test_a_failure_is_exit_code_1_and_each_task_is_shown_with_its_reason_and_label(run: Callable[..., Result]) -> None:
    shown, as_json = run({"a.py": MIXED}, "mixed"), run({"a.py": MIXED}, "mixed", "--json")

    assert (shown.exit_code, as_json.exit_code) == (1, 1)
    assert "bad: failed: ValueError: no such thing" in shown.stdout and "leave: skipped: not today" in shown.stdout
    tasks = json.loads(as_json.stdout)["tasks"]
    assert [(task["task_id"], task["state"], task["result"], task["map_label"]) for task in tasks] == [
        ("bad", "failed", None, None), ("leave", "skipped", None, None), ("twice", "success", 2, "n 0"),
        ("twice", "success", 4, "n 1"),
    ]  # fmt: skip


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
