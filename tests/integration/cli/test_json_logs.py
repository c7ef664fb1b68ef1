"""With logs.format = "json", each process writes only JSON lines, from its start to its end."""

import contextlib
import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.embedded import stack as stacks

DAG = """
from paceline import DAG
from paceline.operators import EmptyOperator, PythonOperator
with DAG("simple"):
    PythonOperator(task_id="good", python_callable=lambda: 1) >> PythonOperator(task_id="bad", python_callable=lambda: 1 / 0)
"""


@contextlib.contextmanager
def process(arguments: list[str], env: dict[str, str], log: Path, address: str) -> Iterator[None]:
    """A process that serves this address, from its first response to its end."""

    def answers() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{address}", timeout=5):
            return True
        return False

    with log.open("w") as output, subprocess.Popen([*stacks.PACELINE, *arguments], env=env, stderr=output) as running:
        try:
            eventually(answers, timeout=60, message=log.read_text)
            yield
        finally:
            running.send_signal(signal.SIGTERM)


def lines(log: Path) -> list[dict[str, Any]]:
    """The records of a log. An error names the line that is none."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pytest.fail(f"{log.name} has a line that is not JSON: {line}")
    return found


@pytest.mark.stack
def test_every_process_writes_json_lines_that_name_its_role(stack_factory: StackFactory, tmp_path: Path) -> None:
    web, flower, autoscaler = (str(stacks.free_port("127.0.0.1", 0)) for _ in range(3))
    env = {"PACELINE_WEB_PORT": web, "PACELINE_FLOWER_PORT": flower}
    stack = stack_factory(
        {"simple.py": DAG}, schedulers=1, workers=[("default", 1)], waiters=1, env=env | {"PACELINE_LOGS_FORMAT": "json"}
    )
    eventually(lambda: stack.cli("dags", "trigger", "simple", "--run-id", "r", "--wait").returncode == 1, timeout=60)
    with process(["web"], stack.env, tmp_path / "web.log", f"{web}/alive"):
        with process(["flower"], stack.env, tmp_path / "flower.log", f"{flower}/healthcheck"):
            pass
    autoscale = ["autoscale", "--queue", "default", "--port", autoscaler]
    with process(autoscale, stack.env, tmp_path / "autoscaler.log", f"{autoscaler}/workers"):
        pass
    stack.stop()

    logs = [*stack.supervisor.logs_folder.glob("*.log"), *tmp_path.glob("*.log")]
    roles = {log.stem.removesuffix("-1"): lines(log) for log in logs}
    assert roles.keys() == {"scheduler", "worker", "waiter", "web", "flower", "autoscaler"}
    for role, records in roles.items():
        assert records and {record["role"] for record in records} == {role}
    assert any(flower in record["message"] for record in roles["flower"])
    assert any("with the password" in record["message"] for record in roles["web"])
