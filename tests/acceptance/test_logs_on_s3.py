"""Logs of tries on moto's real S3-compatible server: read from another machine, and deleted with their run."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from support.s3 import s3_server
from support.stacks import Stack
from support.waiting import eventually

from scheduler.embedded.stack import free_port

s3fs = pytest.importorskip("s3fs", reason="make test-metrics installs it")

pytestmark = [pytest.mark.stack, pytest.mark.on_demand]

BUCKET = "paceline-logs"
DAGS = """
from paceline import DAG, task

@task(retries=1, retry_delay=0.1)
def speak(ti=None):
    print("this is try", ti.try_number)
    if ti.try_number == 1:
        raise ValueError("the first one fails")

@task
def long(folder):
    import pathlib, time
    print("it has begun", flush=True)
    while not pathlib.Path(folder, "go").exists():
        time.sleep(0.05)

with DAG("talk", schedule=None):
    speak()

with DAG("slow", schedule=None):
    long({folder!r})
"""


def copies(port: int) -> list[str]:
    """The keys in the bucket."""
    text = requests.get(f"http://127.0.0.1:{port}/{BUCKET}?list-type=2", timeout=10).text
    return [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]


def elsewhere(stack: Stack, folder: Path, *arguments: str) -> str:
    """The output of `paceline` on another machine, which has the settings, but not the files."""
    environment = stack.env | {"PACELINE_HOME": str(folder), "PACELINE_PATHS_LOGS_FOLDER": str(folder / "logs")}
    key = (stack.settings.home / "fernet.key").read_text().strip()
    command = [sys.executable, "-P", "-m", "scheduler.cli", *arguments]
    done = subprocess.run(
        command, env=environment | {"PACELINE_CORE_FERNET_KEY": key}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_logs_are_copied_to_s3_read_elsewhere_and_deleted_with_their_run(
    stack_factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, other = free_port("127.0.0.1", 0), tmp_path / "other"
    other.mkdir()
    names = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in (names | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}).items():
        monkeypatch.setenv(name, value)
    env = {"PACELINE_LOGS_URL": f"s3://{BUCKET}/logs", "PACELINE_LOGS_COPY_INTERVAL": "1", **{n: os.environ[n] for n in names}}
    env["AWS_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    source = DAGS.replace("{folder!r}", repr(str(tmp_path)))
    stack = stack_factory(dags={"d.py": source}, schedulers=1, workers=[("default", 2)], env=env)
    eventually(lambda: len(stack.json("dags", "list")) == 2, timeout=60, message=stack.logs)
    # The server is away at first: tasks do not wait for it, and the logs are copied later.
    assert stack.json("dags", "trigger", "talk", "--run-id", "one", "--wait", "--timeout", "120")["state"] == "success"
    first_ended = datetime.now(UTC).isoformat()
    with s3_server(port, tmp_path / "s3.txt", BUCKET):
        tries = {f"logs/talk/one/speak/try-{number}.log" for number in (1, 2)}
        eventually(lambda: tries <= set(copies(port)), timeout=60, message=stack.logs)
        assert "this is try 1\n" in elsewhere(stack, other, "tasks", "logs", "talk", "one", "speak", "--try", "1")
        assert "this is try 2\n" in elsewhere(stack, other, "tasks", "logs", "talk", "one", "speak")

        assert stack.cli("dags", "trigger", "slow", "--run-id", "two").returncode == 0
        eventually(lambda: "logs/slow/two/long/try-1.log" in copies(port), timeout=60, message=stack.logs)
        assert "it has begun\n" in elsewhere(stack, other, "tasks", "logs", "slow", "two", "long"), "while the task runs"
        (tmp_path / "go").touch()
        eventually(lambda: stack.json("runs", "show", "slow", "two")["state"] == "success", timeout=60)

        done = stack.cli("db", "clean", "--before", first_ended, "--logs", "--yes")
        assert done.returncode == 0, done.stderr
        eventually(lambda: not tries & set(copies(port)), timeout=60, message=lambda: str(copies(port)))
        assert "logs/slow/two/long/try-1.log" in copies(port)
