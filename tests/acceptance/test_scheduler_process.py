"""`paceline scheduler` as a process: how it starts, waits and stops, and its output."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from scheduler.messaging.publisher import broker_lists
from scheduler.messaging.wakeups import client
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


def test_num_runs_and_run_duration_end_it(start: Any) -> None:
    assert start(PACELINE_SCHEDULER_NUM_RUNS="3").exit_code() == 0
    assert start(PACELINE_SCHEDULER_RUN_DURATION="0.2").exit_code() == 0


def test_a_dag_file_becomes_a_run_and_a_message_without_further_help(start: Any, settings: Settings) -> None:
    (settings.dags_folder / "hello.py").write_text(HELLO)
    start()

    eventually(lambda: rows(settings, "select state from task_instance") == [("queued",)], timeout=END_S)
    broker = client(settings)
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

    broker = client(settings)
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
