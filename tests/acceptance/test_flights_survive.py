"""The flights pipeline on Spark, on the embedded stack, whose parent process is killed with SIGKILL in the middle of the run."""

import csv
import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.standalone import START_S, STOP_S, ask, environment_of, standalone
from support.waiting import eventually

from scheduler.settings import Settings
from scheduler.store.db import database

pytestmark = [pytest.mark.on_demand, pytest.mark.stack, pytest.mark.spark, pytest.mark.timeout(600)]

DAGS = Path(__file__).parents[2] / "dags"
RUN_S = 240.0
MONTHS = 12


def run(environment: dict[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(ask(environment, "runs", "show", "flights", "one", "--json", ok=(0, 1)))
    return shown


def state_of(environment: dict[str, str], task_id: str, map_index: int) -> str | None:
    tasks = run(environment)["tasks"]
    return next((task["state"] for task in tasks if (task["task_id"], task["map_index"]) == (task_id, map_index)), None)


def test_the_flights_run_completes_after_its_parent_was_killed(short_folder: Path) -> None:
    home = short_folder / "home"
    environment = environment_of(home, DAGS)
    with standalone(environment) as first:
        eventually(lambda: '"flights"' in ask(environment, "dags", "list", "--json"), timeout=START_S, interval=0.5)
        ask(environment, "dags", "trigger", "flights", "--run-id", "one")
        eventually(
            lambda: state_of(environment, "month", 2) in ("running", "success"),
            timeout=RUN_S,
            interval=1.0,
            message=lambda: str(run(environment)),
        )
        descendants = psutil.Process(first.pid).children(recursive=True)
        first.send_signal(signal.SIGKILL)
        first.wait(STOP_S)
    _, left = psutil.wait_procs(descendants, timeout=STOP_S)
    assert left == []

    with standalone(environment) as second:
        eventually(
            lambda: run(environment)["state"] in ("success", "failed"),
            timeout=RUN_S,
            interval=2.0,
            message=lambda: str(run(environment)),
        )
        ended = run(environment)
        earlier_tries = tries_before_the_last(environment)
        second.terminate()
        assert second.wait(STOP_S) == 0

    assert ended["state"] == "success"
    assert [task["state"] for task in ended["tasks"] if task["task_id"] == "month"] == ["success"] * MONTHS
    # Each try that was followed by another ended as failed: the one that stands is the only one that succeeded.
    assert {state for _, state in earlier_tries} <= {"failed"}
    folder = home / "data" / "flights" / "one"
    with (folder / "carrier_delays.csv").open() as lines:
        carriers = list(csv.DictReader(lines))
    assert len(carriers) == 16
    assert sum(int(row["flights"]) for row in carriers) == json.loads((folder / "summary.json").read_text())["cleaned_rows"]


def tries_before_the_last(environment: dict[str, str]) -> list[tuple[str, str]]:
    """Task id and state of every try that another followed."""
    engine = database.create(Settings.load(environment))
    try:
        with engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "select t.task_id, y.state from task_try y join task_instance t on t.id = y.task_instance_id"
            )
            return [(row[0], row[1]) for row in rows]
    finally:
        engine.dispose()
