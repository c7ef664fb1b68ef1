"""A process that gets a stop signal while it starts shuts down cleanly, and leaves nothing that looks alive."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from support.waiting import eventually

from scheduler.embedded.stack import PACELINE
from scheduler.settings import Settings

END_S = 60.0
ROLES = {"scheduler": ["scheduler"], "worker": ["worker", "-q", "default", "-c", "1"], "waiter": ["waiter"]}


@contextlib.contextmanager
def started(settings: Settings, role: str, output_path: Path, **env: str) -> "Iterator[subprocess.Popen[bytes]]":
    environment = {
        **os.environ,
        "PACELINE_HOME": str(settings.home),
        "PACELINE_DAGS_FOLDER": str(settings.dags_folder),
        "PACELINE_DATABASE_URL": settings.database_url,
        "PACELINE_BROKER_URL": settings.broker_url,
        **env,
    }
    with output_path.open("wb") as output:
        process = subprocess.Popen([*PACELINE, *ROLES[role]], env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("role", ROLES)
def test_a_signal_during_the_start_leaves_no_mark_and_no_row(
    settings: Settings, tmp_path: Path, role: str, number: signal.Signals
) -> None:
    output = tmp_path / "output.txt"
    with started(settings, role, output) as process:
        mark = settings.run_folder / f"{role}-{process.pid}.mark"
        eventually(mark.exists, timeout=END_S, interval=0.001, message=output.read_text)

        process.send_signal(number)

        assert process.wait(END_S) == 0, output.read_text()
    assert list(settings.run_folder.iterdir()) == []
    with contextlib.closing(psycopg2.connect(settings.database_url)) as connection, connection.cursor() as cursor:
        cursor.execute("select name from process where stopped_at is null")
        assert cursor.fetchall() == []


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_a_signal_ends_a_process_that_waits_for_its_database(settings: Settings, tmp_path: Path, role: str) -> None:
    output = tmp_path / "output.txt"
    with started(settings, role, output, PACELINE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none") as process:
        eventually(lambda: "Waiting for it" in output.read_text(), timeout=END_S, message=output.read_text)

        process.send_signal(signal.SIGTERM)

        assert process.wait(END_S) == 0, output.read_text()
