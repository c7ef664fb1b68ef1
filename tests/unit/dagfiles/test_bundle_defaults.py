"""bundle.toml: what the DAGs of a bundle do not set themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.dagfiles.fork_server import Work, parse
from scheduler.settings import Core, Scheduler

SOURCE = """
from paceline import DAG, task
from paceline.operators import BashOperator

with DAG("d", tags=["gold"]):
    BashOperator(task_id="plain", bash_command="true")
    BashOperator(task_id="own", bash_command="true", owner="ada", pool="big", queue="gpu")

    @task.pyspark
    def on_spark(spark):
        pass

    on_spark()
"""


def parsed(folder: Path, toml: str | None) -> Any:
    (folder / "d.py").write_text(SOURCE)
    if toml is not None:
        (folder / "bundle.toml").write_text(toml)
    return parse("d.py", Work(folder, Core(), Scheduler()))


def of_tasks(reading: Any) -> dict[str, tuple[Any, ...]]:
    tasks = json.loads(reading["dags"][0]["data"])["tasks"]
    return {one["task_id"]: (one.get("owner", "airflow"), one.get("pool", "default_pool"), one.get("queue")) for one in tasks}


def test_they_apply_to_what_a_dag_does_not_set(tmp_path: Path) -> None:
    before = parsed(tmp_path, None)
    after = parsed(tmp_path, 'owner = "sales team"\ntags = ["sales"]\npool = "sales"\nqueue = "sales"\n')

    assert of_tasks(before)["plain"] == ("airflow", "default_pool", None)
    assert of_tasks(after) == {
        "plain": ("sales team", "sales", "sales"), "own": ("ada", "big", "gpu"), "on_spark": ("sales team", "sales", "spark"),
    }  # fmt: skip
    data = json.loads(after["dags"][0]["data"])
    assert (data["tags"], data["owners"]) == (["gold", "sales"], ["ada", "sales team"])
    assert before["dags"][0]["content_hash"] != after["dags"][0]["content_hash"]


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert parsed(tmp_path, None)["dags"][0]["content_hash"] == parsed(tmp_path, "")["dags"][0]["content_hash"]


@pytest.mark.parametrize(("toml", "said"), [
    ("queues = 1", "queues"), ("queue = 1", "queue"), ("queue = ", "Invalid"), ('tags = "sales"', "tags"), ('pool = ""', "pool"),
])  # fmt: skip
def test_a_mistake_is_named(tmp_path: Path, toml: str, said: str) -> None:
    message = parsed(tmp_path, toml)["problem"]["message"]
    assert "bundle.toml of the bundle is not valid: " in message and said in message and "\n" not in message
