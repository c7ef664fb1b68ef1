"""A backup of a stack with running tasks is restored on another machine, and the open run completes there."""

import json
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from support.standalone import START_S, STOP_S, ask, environment_of, standalone
from support.waiting import eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.stack,
    pytest.mark.timeout(300),
]

RUN_S = 120.0
#: Each task records its run and its try. `gate` waits until the test lets it end.
DAG_FILE = """
import time
from pathlib import Path
from paceline import Variable, dag, task

FOLDER = Path({folder!r})

def record(ti):
    with (FOLDER / "ran").open("a") as lines:
        lines.write(f"{{ti.run_id}} {{ti.task_id}} {{ti.try_number}}\\n")

@task
def first(ti=None):
    record(ti)

@task(retries=1, retry_delay=0)
def gate(ti=None):
    record(ti)
    while not (FOLDER / "open").exists():
        time.sleep(0.1)

@task
def last(ti=None):
    record(ti)
    return Variable.get("region")

@dag(schedule=None)
def pipe():
    first() >> gate() >> last()

pipe()
"""


def test_a_backup_of_a_stack_at_work_completes_its_runs_on_another_machine(short_folder: Path) -> None:
    dags, backup = short_folder / "dags", short_folder / "paceline.backup"
    dags.mkdir()
    (dags / "pipe.py").write_text(DAG_FILE.format(folder=str(short_folder)), encoding="utf-8")
    old, new = (environment_of(short_folder / name, dags) for name in ("old", "new"))
    with standalone(old) as first:
        eventually(lambda: '"pipe"' in ask(old, "dags", "list", "--json"), timeout=START_S, interval=0.5)
        ask(old, "variables", "set", "region", "north")
        ask(old, "dags", "trigger", "pipe", "--run-id", "one")
        eventually(lambda: "one gate 1" in ran(short_folder), timeout=RUN_S)

        ask(old, "db", "backup", str(backup))
        (short_folder / "open").touch()
        eventually(lambda: state_of(old, "one") == "success", timeout=RUN_S, interval=0.5)
        ask(old, "dags", "trigger", "pipe", "--run-id", "two", "--wait")
        descendants = psutil.Process(first.pid).children(recursive=True)
        first.send_signal(signal.SIGKILL)
        first.wait(STOP_S)
    _, left = psutil.wait_procs(descendants, timeout=STOP_S)
    assert left == []
    assert backup.stat().st_mode & 0o077 == 0
    before = ran(short_folder)

    (short_folder / "new").mkdir()
    shutil.copy(short_folder / "old" / "fernet.key", short_folder / "new")
    ask(new, "db", "restore", str(backup))
    ask(new, "db", "restore", str(backup), ok=(1,))  # the database is no longer empty
    with standalone(new) as second:
        eventually(lambda: state_of(new, "one") in ("success", "failed"), timeout=RUN_S, interval=0.5)
        state, runs = state_of(new, "one"), json.loads(ask(new, "runs", "list", "--json"))
        ask(new, "doctor", "--deep")
        second.terminate()
        assert second.wait(STOP_S) == 0

    assert state == "success"
    assert before == ["one first 1", "one gate 1", "one last 1", "two first 1", "two gate 1", "two last 1"]
    # Tasks that ended before the backup do not run again. Running ones are retried, and later ones are repeated.
    assert ran(short_folder)[len(before) :] == ["one gate 2", "one last 1"]
    assert [run["run_id"] for run in runs] == ["one"]


def ran(folder: Path) -> list[str]:
    file = folder / "ran"
    return file.read_text().splitlines() if file.exists() else []


def state_of(environment: dict[str, str], run_id: str) -> str:
    state: str = json.loads(ask(environment, "runs", "show", "pipe", run_id, "--json", ok=(0, 1)))["state"]
    return state
