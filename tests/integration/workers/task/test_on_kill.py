"""`on_kill` of an operator, on a real worker: each way to stop a running task calls it once, before its process ends."""

import signal
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.store.actions import clear, mark
from scheduler.store.runs.selection import Runs, Tasks

WORKS = """
import time
from datetime import timedelta

class Works(BaseOperator):
    def execute(self, context):
        if context["ti"].try_number == 1:
            print("started", flush=True)
            time.sleep(120)

    def on_kill(self):
        with open({killed!r}, "a") as file:
            file.write(self.task_id + "\\n")

with DAG("d", schedule=None):
    Works(task_id="t"{options})
"""


def started(bench: Any, options: str = "") -> tuple[int, Path]:
    """A run whose task has begun, and the file to which its `on_kill` writes."""
    killed = bench.folder / "killed"
    bench.dag(WORKS.format(killed=str(killed), options=options))
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, t="running")
    eventually(lambda: bench.log_path("t").exists() and "started" in bench.log("t"))
    return run, killed


def test_a_timeout_calls_it(shared_bench: Any) -> None:
    run, killed = started(shared_bench, ", execution_timeout=timedelta(seconds=2)")

    shared_bench.wait(run)

    assert killed.read_text() == "t\n"
    assert shared_bench.column("t", "reason") == "TaskTimeout: It ran longer than its execution_timeout of 2 s."


def test_clearing_its_task_calls_it(shared_bench: Any) -> None:
    run, killed = started(shared_bench)

    clear.clear(shared_bench.scenario.engine, Runs(dag_id="d"), Tasks(task_ids=("t",)), core=shared_bench.settings.core)
    shared_bench.wait(run)

    assert killed.read_text() == "t\n"
    assert shared_bench.scenario.states(run) == {"t": "success"}
    assert shared_bench.column("t", "try_number") == 2


@pytest.mark.parametrize("state", [TaskState.SUCCESS, TaskState.FAILED])
def test_marking_its_task_calls_it(shared_bench: Any, state: TaskState) -> None:
    run, killed = started(shared_bench)

    mark.mark(shared_bench.scenario.engine, Runs(dag_id="d"), Tasks(task_ids=("t",)), state)
    shared_bench.wait(run)

    eventually(killed.exists)
    assert killed.read_text() == "t\n"
    assert shared_bench.scenario.states(run) == {"t": state}


def test_a_worker_that_stops_calls_it_after_its_grace_period(bench: Any) -> None:
    worker = bench.worker(PACELINE_WORKER_GRACE_SEC="0.3")
    run, killed = started(bench, ", retries=1, retry_delay=0.1")

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert killed.read_text() == "t\n"
    assert bench.scenario.states(run) == {"t": "up_for_retry"}
    assert bench.column("t", "reason") == "worker was stopped"
