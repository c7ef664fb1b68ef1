"""Callbacks with real processes: workers and schedulers are killed, and each lost try has one notice."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.settings import Settings

pytestmark = pytest.mark.stack

LOST = """
import json, os, pathlib, time
from paceline import DAG
from paceline.operators import PythonOperator

HERE = pathlib.Path("FOLDER")

def note(what, context):
    with open(HERE / "told", "a") as file:
        file.write(json.dumps([what, context["ti"].try_number, context["is_rerun"]]) + "\\n")

def slow(context):
    note("retry", context)
    time.sleep(2)

def work(ti):
    note("try", {"ti": ti, "is_rerun": False})
    if ti.try_number < 3:
        time.sleep(600)

with DAG("lost", schedule=None, on_success_callback=lambda context: note("dag_success", context)):
    PythonOperator(task_id="t", python_callable=work, retries=2, on_retry_callback=slow,
                   on_failure_callback=lambda context: note("failure", context))
"""


def told(folder: Path) -> list[Any]:
    path = folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.long
def test_a_worker_killed_in_two_tries_gives_exactly_one_retry_callback_each(
    stack_factory: StackFactory, settings: Settings
) -> None:
    """While a slow callback runs, every scheduler checks for lost workers repeatedly."""
    folder = settings.dags_folder.parent
    quick = {"PACELINE_WORKER_HEARTBEAT_SEC": "0.5", "PACELINE_WORKER_HEARTBEAT_TIMEOUT": "4"}
    stack = stack_factory(dags={"lost.py": LOST.replace("FOLDER", str(folder))}, env=quick)
    eventually(lambda: "lost" in stack.cli("dags", "list").stdout, timeout=120)
    stack.cli("dags", "trigger", "lost", "--run-id", "r")

    for number in (1, 2):
        eventually(lambda number=number: ["try", number, False] in told(folder), timeout=120, message=lambda: str(told(folder)))
        stack.kill("worker-1", signal.SIGKILL)
    eventually(lambda: ["dag_success", 3, False] in told(folder), timeout=120, message=lambda: str(told(folder)))

    eventually(lambda: stack.json("notices", "list") == [], timeout=120)
    assert sorted(told(folder)) == [
        ["dag_success", 3, False],
        ["retry", 1, False],
        ["retry", 2, False],
        ["try", 1, False],
        ["try", 2, False],
        ["try", 3, False],
    ]
