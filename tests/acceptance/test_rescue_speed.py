"""How soon work continues at default settings after kill -9 of a worker and an emptied Redis; and scale-down under load."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine
from support.faulty import default_times
from support.stacks import Stack
from support.waiting import eventually

from scheduler.embedded import stack as stacks
from scheduler.messaging.brokers import client
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DAGS = """
import time
from paceline import DAG, task

with DAG("long", schedule=None):
    @task(retries=1, retry_delay=300, queue="long")
    def wait(number, ti):
        ti.try_number == 1 and time.sleep(600)
    wait.expand(number=list(range(4)))

with DAG("short", schedule=None, max_active_tasks=1000):
    @task
    def quick(number):
        time.sleep(0.02)
    quick.expand(number=list(range(150)))
"""


@pytest.fixture
def engine(settings: Any) -> Iterator[Engine]:
    engine = database.create(settings, application="test")
    yield engine
    engine.dispose()


def rows(engine: Engine, statement: str) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


def known(stack: Stack, engine: Engine) -> None:
    eventually(lambda: rows(engine, "select count(*) from dag") == [(2,)], timeout=120, message=stack.logs)


def four_at_work(stack: Stack, engine: Engine) -> None:
    transact(engine, manual_runs.trigger, "long", run_id="r")
    running = "select count(*) from task_instance where state = 'running'"
    eventually(lambda: rows(engine, running) == [(4,)], timeout=120, message=stack.logs)


def next_tries(stack: Stack, engine: Engine, since: float) -> list[float]:
    """Seconds from `since` to the beginning of the second try of each."""
    begun = "select extract(epoch from started_at)::float from task_instance where try_number = 2 and started_at is not null"
    return eventually(
        lambda: [at - since for (at,) in found] if len(found := rows(engine, begun)) == 4 else None,
        timeout=120, message=stack.logs,
    )  # fmt: skip


@pytest.mark.on_demand
@pytest.mark.alone
def test_tasks_of_a_worker_whose_machine_died_run_again_within_15_s(stack_factory: Any, engine: Engine, tmp_path: Path) -> None:
    stack = stack_factory(dags={"d.py": DAGS}, schedulers=2, workers=[("default", 2)], env=default_times())
    known(stack, engine)
    # On a home of its own, so that no process here learns of its end from the kernel.
    elsewhere = stack.env | {"PACELINE_HOME": str(tmp_path / "elsewhere"), "PACELINE_PATHS_LOGS_FOLDER": str(tmp_path / "logs")}
    command = [*stacks.PACELINE, "worker", "-q", "long", "-c", "4", "--name", "victim"]
    with subprocess.Popen(command, env=elsewhere, stderr=subprocess.DEVNULL) as victim:
        four_at_work(stack, engine)
        children = psutil.Process(victim.pid).children(recursive=True)
        victim.kill()
        at = time.time()
    psutil.wait_procs(children, timeout=10)
    with subprocess.Popen([*command[:-1], "heir"], env=stack.env, stderr=subprocess.DEVNULL) as successor:
        waited = next_tries(stack, engine, at)
        successor.send_signal(signal.SIGTERM)

    print(f"\nworker gone for good: next tries after {min(waited):.1f} to {max(waited):.1f} s")
    assert max(waited) < 15


@pytest.mark.on_demand
@pytest.mark.alone
def test_tasks_of_a_worker_that_restarts_on_its_machine_run_again_immediately(stack_factory: Any, engine: Engine) -> None:
    stack = stack_factory(dags={"d.py": DAGS}, schedulers=2, workers=[("long", 4)], env=default_times())
    known(stack, engine)
    four_at_work(stack, engine)

    stack.kill("worker-1")
    waited = next_tries(stack, engine, time.time())

    print(f"\nworker started again by its supervisor: next tries after {min(waited):.1f} to {max(waited):.1f} s")
    assert max(waited) < 10


@pytest.mark.on_demand
@pytest.mark.alone
@pytest.mark.parametrize("how", ["flushed", "killed"])
def test_all_queued_work_runs_within_10_s_after_redis_came_back_empty(
    how: str, stack_factory: Any, engine: Engine, short_folder: Path, settings: Any
) -> None:
    from support.servers import running_redis

    with running_redis(short_folder / "redis") as server:
        own = {"PACELINE_BROKER_URL": server.new_database(), "PACELINE_SCHEDULER_PREFETCH_WINDOW": "200"}
        stack = stack_factory(dags={"d.py": DAGS}, schedulers=2, workers=[("default", 4)], env=default_times() | own)
        known(stack, engine)
        transact(engine, manual_runs.trigger, "short", run_id="r")
        queued = "select id from task_instance where state = 'queued'"
        ids = eventually(lambda: found if len(found := rows(engine, queued)) >= 50 else None, timeout=120, interval=0.01)
        broker = client(own["PACELINE_BROKER_URL"])
        if how == "flushed":
            broker.flushall()
        else:
            os.kill(server.embedded.supervisor.pid("redis"), signal.SIGKILL)
        at = time.monotonic()
        left = f"select count(*) from task_instance where state = 'queued' and id = any(array[{','.join(str(i) for (i,) in ids)}])"
        eventually(lambda: rows(engine, left) == [(0,)], timeout=120, message=stack.logs)
        waited = time.monotonic() - at
        eventually(lambda: rows(engine, "select state from dag_run") == [("success",)], timeout=120, message=stack.logs)
        broker.close()

    print(f"\nRedis {how}: {len(ids)} queued task instances began within {waited:.1f} s")
    assert waited < 10
    assert rows(engine, "select max(try_number) from task_instance") == [(1,)]


@pytest.mark.long
def test_scale_down_under_load_spends_no_try(stack_factory: Any, engine: Engine) -> None:
    """Tasks that a worker has not begun when it is stopped run on another worker, in the same try."""
    stack = stack_factory(dags={"d.py": DAGS}, schedulers=1, workers=[("default", 2), ("default", 2)])
    known(stack, engine)
    transact(engine, manual_runs.trigger, "short", run_id="r")
    done = "select count(*) from task_instance where state = 'success'"
    eventually(lambda: rows(engine, done)[0][0] >= 10, timeout=120, interval=0.01, message=stack.logs)

    stack.kill("worker-1", signal.SIGTERM)

    eventually(lambda: rows(engine, "select state from dag_run") == [("success",)], timeout=120, message=stack.logs)
    assert rows(engine, "select max(try_number), count(*) from task_instance") == [(1, 150)]
    assert rows(engine, "select count(*) from task_try") == [(0,)]
    eventually(lambda: "has stopped" in stack.logs(), timeout=60, message=stack.logs)
