"""`paceline deploy` through a web process to two machines that share no folder: run, deploy again under a run, roll back."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.processes import free_port
from support.stacks import Stack, StackFactory
from support.waiting import eventually

from scheduler.embedded.stack import PACELINE
from scheduler.embedded.supervisor import Command
from scheduler.settings import Settings
from scheduler.store.accounts import accounts, logins
from scheduler.store.db import database
from scheduler.store.db.database import transact

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DAG_FILE = """
from pathlib import Path

from paceline import DAG, task
from shared.texts import mark

with DAG("marked", schedule=None):
    @task.sensor(poke_interval=0.2, mode="reschedule")
    def wait(flag):
        return Path(flag).exists()

    @task
    def read():
        return [mark(), Path(__file__).with_name("mark.txt").read_text()]

    wait("{{ dag_run.conf.flag }}") >> read()
"""


def write(folder: Path, mark: str) -> None:
    """A folder whose module and data file hold the mark."""
    (folder / "shared").mkdir(parents=True, exist_ok=True)
    (folder / "marked.py").write_text(DAG_FILE)
    (folder / "shared/texts.py").write_text(f"def mark():\n    return {mark!r}\n")
    (folder / "mark.txt").write_text(mark)


class Deployed:
    """Two machines with empty DAGs folders, and a web process to which an account of the bundle deploys."""

    def __init__(self, factory: StackFactory, settings: Settings, tmp_path: Path) -> None:
        self.folder = tmp_path / "code"
        self.stacks: list[Stack] = []
        for name in ("one", "two"):
            (tmp_path / name / "dags").mkdir(parents=True)
            own = {"PACELINE_HOME": str(tmp_path / name), "PACELINE_DAGS_FOLDER": str(tmp_path / name / "dags")}
            self.stacks.append(factory(schedulers=1, workers=[("default", 2)], env=own))
        port, first = free_port(), self.stacks[0]
        environment = first.env | {"PACELINE_WEB_PORT": str(port), "PACELINE_WEB_SIGNING_KEY": "k" * 32}
        first.supervisor.start(Command(name="web", argv=(*PACELINE, "web"), environment=environment))
        engine = database.create(settings)
        account = transact(engine, accounts.create, "ci", "correct horse", role=None, tags={"bundle:sales": "operator"})
        token, _ = transact(engine, logins.issue, account.id, "token", lasts_s=600.0, name="ci")
        engine.dispose()
        self.client = first.env | {"PACELINE_URL": f"http://127.0.0.1:{port}", "PACELINE_TOKEN": token}
        eventually(lambda: "does not answer" not in self.deploy("--rollback", ok=None)[1], timeout=90)

    def deploy(self, *arguments: str, ok: int | None = 0) -> tuple[str, str]:
        """What `paceline deploy` prints, and its errors."""
        done = Stack(self.stacks[0].settings, self.client, self.stacks[0].supervisor, []).cli(
            "deploy", "--bundle", "sales", *arguments
        )
        assert ok is None or done.returncode == ok, done.stdout + done.stderr
        return done.stdout, done.stderr

    def trigger(self, run_id: str, flag: Path) -> None:
        done = self.stacks[0].cli("dags", "trigger", "marked", "--run-id", run_id, "--conf", json.dumps({"flag": str(flag)}))
        assert done.returncode == 0, done.stderr

    def result(self, run_id: str) -> Any:
        """What the task of a run has read, when the run has ended."""
        stack = self.stacks[1]
        done = stack.cli("runs", "watch", "marked", run_id)
        assert done.returncode == 0, done.stdout + stack.logs()
        (value,) = [row["value"] for row in stack.json("tasks", "xcoms", "marked", run_id, "read") if row["key"] == "return_value"]
        return value


def test_a_folder_is_deployed_run_replaced_and_rolled_back(stack_factory: StackFactory, settings: Settings, tmp_path: Path) -> None:
    deployed = Deployed(stack_factory, settings, tmp_path)
    flag, set_flag = tmp_path / "flag", tmp_path / "set"
    set_flag.touch()

    write(deployed.folder, "first")
    assert deployed.deploy(str(deployed.folder))[0] == "added    DAG marked\nVersion 1 of bundle sales is live.\n"
    deployed.trigger("before", set_flag)
    assert deployed.result("before") == ["first", "first"]
    deployed.trigger("during", flag)

    write(deployed.folder, "second")
    assert deployed.deploy(str(deployed.folder))[0] == "changed  DAG marked\nVersion 2 of bundle sales is live.\n"
    deployed.trigger("after", set_flag)
    assert deployed.result("after") == ["second", "second"]
    flag.touch()
    assert deployed.result("during") == ["first", "first"], "it keeps the code with which it began"

    (deployed.folder / "broken.py").write_text("from paceline import DAG\n\nDAG(dag_identifier='x')\n")
    printed, errors = deployed.deploy(str(deployed.folder), ok=1)
    assert printed.startswith("broken.py:3: ") and "version 2 stays live" in errors

    assert deployed.deploy("--rollback")[0] == "changed  DAG marked\nVersion 1 of bundle sales is live.\n"
    deployed.trigger("back", set_flag)
    assert deployed.result("back") == ["first", "first"]
