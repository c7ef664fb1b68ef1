"""`python -m bench` at a small size: it measures the right things. Speed does not matter here.

`make test-long` takes the shapes and the parts that are quick; `make test-bench` takes all.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import parts, shapes
from bench.peers.engines import alternation
from bench.peers.engines.catalog import ENGINES, Engine
from bench.tables import needs

pytestmark = [pytest.mark.stack, pytest.mark.long]

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 240
#: Of the part `tables`, which starts eight JVMs.
TABLES_LIMIT_S = 600
SMALL = shapes.small()
QUICK = ("fanin", "creation", "memory")
#: The part `tables` has a test of its own, because it needs more than other parts.
PARTS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.on_demand) for name in parts.PARTS if name != "tables"]


def bench(*arguments: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The result of a small bench."""
    return run("--small", "--iterations", "1", *arguments, limit_s=limit_s)


def run(*arguments: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The JSON object that a bench ends with."""
    command = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_every_shape_runs_to_its_end_beside_bare_celery() -> None:
    result = bench(*SMALL)

    assert set(result) == {"machine", "raw", "shapes"}
    assert {name: (one["tasks"], one["succeeded"], one["runs"]) for name, one in result["shapes"].items()} == {
        name: (shape.tasks, shape.tasks, 1) for name, shape in SMALL.items()
    }
    for one in result["shapes"].values():
        assert all(one[ratio] > 0 and one[f"{ratio}_no_ack"] > 0 for ratio in ("of_raw_celery", "hop_over_raw", "cpu_over_raw"))
        assert one["wal_bytes_per_task"] > 0
        assert 0 < one["hop_ms"]["p50"] <= one["hop_ms"]["p95"] <= one["hop_ms"]["p99"] < 1000 * one["makespan_s"]
        assert set(one["cpu_s_per_task"]) >= {"scheduler", "worker", "worker_children", "postgres", "redis", "total"}


@pytest.mark.parametrize("part", PARTS)
def test_every_other_part_ends_with_its_piece(part: str) -> None:
    result = bench(part)

    assert set(result) - {"machine"}
    assert all(result.values())


def test_a_hop_is_the_sum_of_its_stages() -> None:
    result = bench("hop")["hop"]

    # Of the five tasks of a run, the first begins with a message, and the last is followed by none.
    assert result["hops"] == 2 * (5 - 2)
    assert all(took > 0 for took in result["stages"].values())
    assert result["stages"]["PostgreSQL and the way to it"] > result["round_trip"] > 0
    assert result["floor"] > 0


def test_connections_follow_the_work() -> None:
    result = bench("connections")["connections"]

    assert result["retried"] == 0
    assert result["burst"]["reports"] == result["workers"] * result["children"]
    # While all its tasks run, a worker has at most those of its parent process.
    assert result["burst"]["open_before"] < result["max_connections"] - 100


@pytest.mark.on_demand
@pytest.mark.timeout(TABLES_LIMIT_S)
def test_tables_are_published_by_one_commit_and_sql_tasks_have_the_answers_of_duckdb() -> None:
    if needs.JARS not in os.environ:
        pytest.skip(f"No folder with the jar of Iceberg: name it in {needs.JARS}.")
    try:
        needs.generator()
    except needs.MissingError as missing:
        pytest.skip(str(missing))
    result = bench("tables", limit_s=TABLES_LIMIT_S)["tables"]

    assert result["publish"]["plain"]["commits"] == result["publish"]["publishing"]["commits"] == 1
    assert result["publish"]["more"]["statements"] > 0
    assert (result["tpch"]["differs"], result["tpch"]["equal"]) == ({}, 22)
    assert result["tpch"]["over_session"] > 0 and result["small"]["over_session"] > 0


def test_dag_files_import_nothing_that_airflow_lacks() -> None:
    lines = {line for shape in shapes.full().values() for text in shape.files.values() for line in text.splitlines()}
    assert {line for line in lines if "import" in line} == {"from paceline import DAG, task"}


def test_the_rest_api_in_small() -> None:
    result = web("api", "live", "clear")

    assert result["cleared"] == 20 * 5
    assert result["live_messages"] >= result["live_expected"]
    assert result["grid_bytes"] > 0 and result["api"]["p95"] > 0


@pytest.mark.on_demand
def test_the_engine_with_open_pages_in_small() -> None:
    result = web("engine")["engine_with_pages"]

    assert all(result[shape]["makespan"]["ratio"] > 0 and result[shape]["engine_cpu"]["ratio"] > 0 for shape in ("chain", "many"))


@pytest.mark.on_demand
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_installed_engine_runs_each_shape_to_its_end(engine: Engine) -> None:
    if not engine.is_installed():
        pytest.skip(f"{engine.name} is not installed; `python -m bench peers --engines {engine.name}` installs it")
    sizes = {name: task for name, task in alternation.tasks(small=True).items() if name not in engine.without}

    result = run("peers", "--small", "--engines", engine.name, "--iterations", "1", *(f"--shape={name}" for name in sizes))

    shown = result["engines"][engine.name]["shapes"]
    assert {name: one["tasks"] for name, one in shown.items()} == {name: task.paceline.tasks for name, task in sizes.items()}
    assert all(min(one["ms_per_task"].values()) > 0 and one["time_over"] > 0 for one in shown.values())


def web(*parts: str) -> dict[str, Any]:
    """The result of a small `bench web`."""
    return run("web", "--small", *parts)
