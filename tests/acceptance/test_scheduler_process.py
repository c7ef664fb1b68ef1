"""`paceline scheduler` as a process: how it starts, waits and stops, and two of them beside a worker."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stacks import Stack
from support.waiting import eventually

from scheduler.messaging.brokers import client
from scheduler.messaging.publisher import broker_lists
from scheduler.settings import Settings
from scheduler.store.db import database

pytestmark = pytest.mark.stack
HELLO = """
from paceline import DAG
from paceline.operators import EmptyOperator

with DAG("hello", schedule="@once"):
    EmptyOperator(task_id="t")
"""
END_S = 60.0


class Process:
    """One scheduler and its output."""

    def __init__(self, settings: Settings, folder: Path, **env: str) -> None:
        self._output = folder / "output.txt"
        environment = os.environ | {
            "PACELINE_HOME": str(settings.home),
            "PACELINE_DAGS_FOLDER": str(settings.dags_folder),
            "PACELINE_DATABASE_URL": settings.database_url,
            "PACELINE_BROKER_URL": settings.broker_url,
            **env,
        }
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scheduler.cli", "scheduler"], env=environment, cwd=folder, stderr=output
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def exit_code(self) -> int:
        eventually(lambda: self.process.poll() is not None, timeout=END_S, message=lambda: self.output)
        return int(self.process.returncode)


@pytest.fixture
def start(settings: Settings, tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def start(**env: str) -> Process:
        started.append(Process(settings, tmp_path, **env))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(END_S)


def rows(settings: Settings, statement: str) -> list[Any]:
    engine = database.create(settings)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement)]
    finally:
        engine.dispose()


def test_sigterm_ends_it_in_order(start: Any, settings: Settings) -> None:
    scheduler = start()
    eventually(lambda: "started" in scheduler.output, timeout=END_S)

    scheduler.process.send_signal(signal.SIGTERM)

    assert scheduler.exit_code() == 0
    assert rows(settings, "select stopped_at is not null from process") == [(True,)]


@pytest.mark.long
def test_num_runs_and_run_duration_end_it(start: Any) -> None:
    assert start(PACELINE_SCHEDULER_NUM_RUNS="3").exit_code() == 0
    assert start(PACELINE_SCHEDULER_RUN_DURATION="0.2").exit_code() == 0


def test_a_dag_file_becomes_a_run_and_a_message_without_further_help(start: Any, settings: Settings) -> None:
    (settings.dags_folder / "hello.py").write_text(HELLO)
    start()

    eventually(lambda: rows(settings, "select state from task_instance") == [("queued",)], timeout=END_S)
    broker = client(settings.broker_url)
    eventually(lambda: sum(broker.llen(key) for key in broker_lists("default")) == 1)
    broker.close()


def test_it_waits_for_the_database_and_logs_it(start: Any, settings: Settings, tmp_path: Path) -> None:
    real = settings.database_url.split("host=")[1]
    link = tmp_path / "later"
    scheduler = start(PACELINE_DATABASE_URL=settings.database_url.replace(real, str(link)))
    eventually(lambda: "PostgreSQL does not answer" in scheduler.output, timeout=END_S)

    link.symlink_to(real)

    eventually(lambda: "started" in scheduler.output, timeout=END_S)


def test_without_a_broker_it_decides_and_sends_later(start: Any, settings: Settings, tmp_path: Path) -> None:
    (settings.dags_folder / "hello.py").write_text(HELLO)
    path, _, number = settings.broker_url.removeprefix("redis+socket://").partition("?")
    link = tmp_path / "redis.sock"
    scheduler = start(PACELINE_BROKER_URL=f"redis+socket://{link}?{number}", PACELINE_WORKER_HEARTBEAT_TIMEOUT="3")
    eventually(lambda: rows(settings, "select state from task_instance") == [("queued",)], timeout=END_S)
    assert "Redis does not answer" in scheduler.output

    link.symlink_to(path)

    broker = client(settings.broker_url)
    eventually(
        lambda: sum(broker.llen(key) for key in broker_lists("default")) == 1, timeout=END_S, message=lambda: scheduler.output
    )
    broker.close()
    assert rows(settings, "select try_number from task_instance") == [(1,)]


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("PACELINE_DATABASE_URL", ("postgres@", "nobody@"), "PostgreSQL rejects the connection"),
        ("PACELINE_BROKER_URL", ("redis+socket://", "redis+socket://nobody:hidden@"), "Redis rejects the connection"),
    ],
)
def test_wrong_credentials_stop_it_with_an_error_message(
    start: Any, settings: Settings, name: str, change: tuple[str, str], sentence: str
) -> None:
    url = settings.database_url if name == "PACELINE_DATABASE_URL" else settings.broker_url

    scheduler = start(**{name: url.replace(*change)})

    assert scheduler.exit_code() == 4
    assert sentence in scheduler.output
    assert "Traceback" not in scheduler.output and "hidden" not in scheduler.output


def test_an_old_schema_stops_it_with_the_command_to_run(start: Any, empty_database_url: str) -> None:
    scheduler = start(PACELINE_DATABASE_URL=empty_database_url)

    assert scheduler.exit_code() == 4
    assert "paceline db migrate" in scheduler.output


def test_it_goes_on_after_its_connections_were_cut(start: Any, settings: Settings) -> None:
    scheduler = start()
    eventually(lambda: "started" in scheduler.output, timeout=END_S)
    rows(
        settings,
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and application_name = 'paceline scheduler'",
    )

    (settings.dags_folder / "hello.py").write_text(HELLO)

    eventually(
        lambda: rows(settings, "select state from task_instance") == [("queued",)], timeout=END_S, message=lambda: scheduler.output
    )
    assert scheduler.process.poll() is None


CHAIN = """
from paceline import DAG
from paceline.operators import EmptyOperator

with DAG("chain", schedule=None):
    before = None
    for number in range(100):
        task = EmptyOperator(task_id=f"t{number:03}")
        if before is not None:
            before >> task
        before = task
"""
#: Two tasks a lane, the second ranking higher, so that following has its part in filling the pools.
POOLS = """
from paceline import DAG
from paceline.operators import EmptyOperator

for pool in ("three", "five"):
    with DAG(f"pool_{pool}", schedule=None, max_active_tasks=1000):
        for number in range(250):
            first, second = (
                EmptyOperator(task_id=f"{name}{number:03}", pool=pool, priority_weight=rank, weight_rule="absolute")
                for rank, name in ((1, "a"), (2, "b"))
            )
            first >> second
"""


def rows_of(stack: Stack, statement: str) -> list[Any]:
    engine = database.create(stack.settings)
    try:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql(statement))
    finally:
        engine.dispose()


def parsed(stack: Stack, *dag_ids: str) -> None:
    eventually(
        lambda: set(dag_ids) <= {dag["dag_id"] for dag in stack.json("dags", "list")},
        timeout=120,
        interval=0.3,
        message=stack.logs,
    )


def test_a_chain_of_100_is_queued_by_the_worker_and_a_killed_scheduler_is_not_missed(stack_factory: Any) -> None:
    stack = stack_factory(dags={"chain.py": CHAIN}, schedulers=2, workers=[("default", 4)])
    parsed(stack, "chain")

    run = stack.json("dags", "trigger", "chain", "--wait", "--timeout", "120")

    tasks = sorted(run["tasks"], key=lambda task: task["task_id"])
    assert run["state"] == "success"
    assert [task["state"] for task in tasks] == ["success"] * 100
    assert tasks[0]["queued_by"].startswith(("cli:", "scheduler"))  # by the command that triggers the run, if it gets the locks
    assert sum(task["queued_by"] == task["worker"] for task in tasks[1:]) == 99
    assert {task["try_number"] for task in tasks} == {1}
    assert rows_of(stack, "select count(*) from task_try") == [(0,)]

    stack.kill("scheduler-1")
    run = stack.json("dags", "trigger", "chain", "--wait", "--timeout", "120")

    assert run["state"] == "success"
    assert all(task["state"] == "success" for task in run["tasks"])


def test_two_pools_are_never_overrun_by_1000_tasks(stack_factory: Any) -> None:
    stack = stack_factory(dags={"pools.py": POOLS}, schedulers=2, workers=[("default", 8)])
    assert stack.cli("pools", "set", "three", "3").returncode == 0
    assert stack.cli("pools", "set", "five", "5").returncode == 0
    parsed(stack, "pool_three", "pool_five")
    for name in ("pool_three", "pool_five"):
        assert stack.cli("dags", "trigger", name).returncode == 0

    eventually(
        lambda: rows_of(stack, "select count(*) from dag_run where state = 'success'") == [(2,)],
        timeout=180,
        interval=0.5,
        message=stack.logs,
    )

    held = rows_of(stack, "select pool, queued_at, ended_at from task_instance order by pool")
    assert len(held) == 1000
    assert most_at_once(held, "three") <= 3
    assert most_at_once(held, "five") <= 5
    assert rows_of(stack, "select count(*) > 0 from task_instance where queued_by = worker") == [(True,)]


def most_at_once(held: list[Any], pool: str) -> int:
    """The largest number of task instances of a pool that were queued or running at one instant. A successor takes over at the
    instant at which its predecessor ends, so ends are counted before beginnings."""
    changes = [(at, step) for name, begun, ended in held if name == pool for at, step in ((begun, 1), (ended, -1))]
    level = most = 0
    for _, step in sorted(changes):
        level += step
        most = max(most, level)
    return most
