"""Code that reaches machines without a shared folder, by `paceline deploy` or from the DAGs folder, and changes under a run."""

import json
import re
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


FOLDER_DAG = """
from pathlib import Path

from paceline import DAG, task

def ended(context):
    from shared.texts import mark
    Path(context["dag_run"].conf["ended"]).write_text(mark())

with DAG("saved", schedule=None, on_success_callback=ended):
    @task.sensor(poke_interval=0.2, mode="reschedule")
    def wait(flag):
        return Path(flag).exists()

    @task
    def read():
        from shared.texts import mark
        if mark() == "wrong":
            raise ValueError("a mistake")
        return [mark(), Path(__file__).with_name("mark.txt").read_text(), "VERSION"]

    wait("{{ dag_run.conf.flag }}") >> read()
"""


def save(folder: Path, mark: str) -> None:
    """Save the DAG file, its module and its data, in an order in which nothing is right until the last one."""
    (folder / "shared").mkdir(parents=True, exist_ok=True)
    (folder / "mark.txt").write_text(mark)
    (folder / "saved.py").write_text(FOLDER_DAG.replace("VERSION", mark))
    (folder / "shared/texts.py").write_text(f"def mark():\n    return {mark!r}\n")


def test_a_run_of_the_dags_folder_keeps_the_code_of_its_creation_until_it_is_cleared(
    stack_factory: StackFactory, settings: Settings, tmp_path: Path
) -> None:
    """The worker has no DAGs folder. The folder changes under two runs, and in the end the DAG file is gone."""
    (tmp_path / "two/dags").mkdir(parents=True)
    elsewhere = {"PACELINE_HOME": str(tmp_path / "two"), "PACELINE_DAGS_FOLDER": str(tmp_path / "two/dags")}
    save(settings.dags_folder, "first")
    stack = stack_factory(schedulers=2, workers=[])
    stack_factory(schedulers=0, workers=[("default", 2)], env=elsewhere)

    def trigger(run_id: str, flag: str) -> None:
        conf = {"flag": str(tmp_path / flag), "ended": str(tmp_path / f"{run_id}.ended")}
        done = stack.cli("dags", "trigger", "saved", "--run-id", run_id, "--conf", json.dumps(conf))
        assert done.returncode == 0, done.stderr

    def result(run_id: str) -> Any:
        done = stack.cli("runs", "watch", "saved", run_id)
        assert done.returncode == 0, done.stdout + stack.logs()
        (value,) = [row["value"] for row in stack.json("tasks", "xcoms", "saved", run_id, "read") if row["key"] == "return_value"]
        return value

    (tmp_path / "set").touch()
    eventually(lambda: stack.cli("dags", "show", "saved").returncode == 0, timeout=60)
    trigger("during", "flag")
    # The commands wait until a scheduler has parsed what was saved before them.
    save(settings.dags_folder, "wrong")
    trigger("corrected", "set")
    assert stack.cli("runs", "watch", "saved", "corrected").returncode == 1
    save(settings.dags_folder, "third")
    done = stack.cli("runs", "clear", "saved", "corrected", "--only-failed", "--yes")
    # A scheduler may see the folder between two saves, so the numbers differ.
    assert re.search(r"Run corrected continues with version \d of the DAG instead of \d\.", done.stderr), done.stdout + done.stderr
    assert result("corrected") == ["third", "third", "third"]
    (settings.dags_folder / "saved.py").unlink()
    eventually(lambda: not stack.json("dags", "show", "saved")["is_active"], timeout=60)
    (tmp_path / "flag").touch()

    assert result("during") == ["first", "first", "first"]
    ends = [tmp_path / f"{run_id}.ended" for run_id in ("during", "corrected")]
    eventually(lambda: [end.read_text() if end.exists() else "" for end in ends] == ["first", "third"], timeout=60)
