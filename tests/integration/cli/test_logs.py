"""`paceline tasks logs`, logs in JSON lines, and `runs watch` on a terminal."""

import contextlib
import io
import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.scenario import Scenario, dag
from support.stacks import StackFactory
from support.waiting import eventually

from paceline.exceptions import NotFoundError, WaitTimeoutError
from paceline.states import TaskState
from scheduler.cli import progress
from scheduler.embedded import stack as stacks
from scheduler.settings import log_paths
from scheduler.store.db.database import transact
from scheduler.store.read import reads
from scheduler.store.worker.claims import Ending
from scheduler.store.worker.dispatches import ProgressWriter
from workers.process.progress import Progress

from .conftest import Cli


@pytest.fixture
def log_of(scenario: Scenario) -> Callable[..., Path]:
    """The path of a try's log, its folder made."""

    def path(task_id: str, number: int, run_id: str = "one") -> Path:
        folder = scenario.settings.logs_folder
        found = Path(log_paths.try_path(folder, dag_id="pair", run_id=run_id, task_id=task_id, map_index=-1, try_number=number))
        found.parent.mkdir(parents=True, exist_ok=True)
        return found

    return path


def test_the_newest_try_is_printed_unless_another_is_requested(cli: Cli, scenario: Scenario, log_of: Callable[..., Path]) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end()
    scenario.sql("update task_instance set try_number = 2 where task_id = 'first'")
    log_of("first", 1).write_text("old\n")
    log_of("first", 2).write_text("new\n")

    assert cli("tasks", "logs", "pair", "one", "first").stdout == "new\n"
    assert cli("tasks", "logs", "pair", "one", "first", "--try", "1").stdout == "old\n"
    assert cli.json("tasks", "logs", "pair", "one", "first") == {
        "path": str(log_of("first", 2)),
        "try_number": 2,
        "log": "new\n",
        "incomplete": None,
    }


def test_the_path_is_that_of_the_contract(scenario: Scenario, log_of: Callable[..., Path]) -> None:
    assert log_of("first", 3) == scenario.settings.home / "logs" / "pair" / "one" / "first" / "try-3.log"


def test_a_big_log_comes_whole(cli: Cli, scenario: Scenario, log_of: Callable[..., Path]) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end()
    big = b"x\xff" * 500_000
    log_of("first", 1).write_bytes(big)

    assert cli("tasks", "logs", "pair", "one", "first").stdout_bytes == big


def test_a_missing_log_is_explained_with_exit_code_3(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    before = cli("tasks", "logs", "pair", "one", "first")
    scenario.run_to_end(outcome=lambda claim: TaskState.FAILED)

    ran_elsewhere = cli("tasks", "logs", "pair", "one", "first")
    never_ran = cli("tasks", "logs", "pair", "one", "second")
    no_such_try = cli("tasks", "logs", "pair", "one", "first", "--try", "9")

    assert [done.exit_code for done in (before, ran_elsewhere, never_ran, no_such_try)] == [3, 3, 3, 3]
    assert "has not begun; the task is none" in before.stderr
    assert "on the machine of its worker" in ran_elsewhere.stderr
    assert "nothing ran" in never_ran.stderr
    assert "Try 9 of task 'first' of run 'one' has not begun" in no_such_try.stderr


def test_following_prints_new_lines_until_the_try_ends(
    cli: Cli, scenario: Scenario, log_of: Callable[..., Path], background: Callable[..., None]
) -> None:
    scenario.trigger("pair", run_id="one")
    path = log_of("first", 1)

    def work() -> None:
        scenario.turn()
        scenario.turn()
        (message,) = eventually(scenario.messages)
        claim = scenario.claim(message)
        assert claim is not None
        path.write_text("begun\n")
        with path.open("a") as file:
            file.write("ended\n")
        from scheduler.store.worker.claims import Ending

        assert scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored

    background(work)
    done = cli("tasks", "logs", "pair", "one", "first", "-f")

    assert (done.exit_code, done.stdout) == (0, "begun\nended\n")


def test_following_a_task_that_will_never_run_ends(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end(outcome=lambda claim: TaskState.FAILED)

    done = cli("tasks", "logs", "pair", "one", "second", "-f")

    assert done.exit_code == 3
    assert "nothing ran" in done.stderr


def test_of_a_mapped_task_the_instances_are_named(cli: Cli, scenario: Scenario) -> None:
    each = {"expand": {"kind": "product", "inputs": [{"literal": 3}]}}
    scenario.finish(dag("mapped", {"each": [], "after": ["each"]}, options={"each": each}), run_id="one")

    folder = scenario.settings.logs_folder
    for index in (0, 1):
        path = Path(log_paths.try_path(folder, dag_id="mapped", run_id="one", task_id="each", map_index=index, try_number=1))
        path.parent.mkdir(parents=True)
        path.write_text(f"instance {index}\n")

    assert cli("tasks", "logs", "mapped", "one", "each", "--map-index", "1").stdout == "instance 1\n"

    of_none = cli("tasks", "logs", "mapped", "one", "each")
    of_other = cli("tasks", "logs", "mapped", "one", "each", "--map-index", "3")
    of_plain = cli("tasks", "logs", "mapped", "one", "after", "--map-index", "3")

    assert (of_none.exit_code, of_other.exit_code, of_plain.exit_code) == (3, 3, 3)
    assert "Task 'each' of run 'one' is mapped: choose one of its instances, --map-index 0 to 2." in of_none.stderr
    assert "Task 'each' of run 'one' is mapped and has no instance 3: choose --map-index 0 to 2." in of_other.stderr
    assert "Task 'after' of run 'one' is not mapped, or not expanded yet: remove --map-index." in of_plain.stderr


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


@pytest.mark.long
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


def test_a_terminal_gets_a_bar_and_the_tasks(scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end()
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)

    run = progress.watch_run(scenario.engine, "pair", "one", console=screen)

    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert run["state"] == "success"
    assert "2/2" in shown
    assert "first" in shown
    assert "second" in shown


def test_the_progress_of_a_running_task_is_shown_until_it_ends(scenario: Scenario, background: Callable[..., None]) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.turn()
    claim = scenario.claim(*scenario.messages())
    assert claim is not None
    writer = ProgressWriter(scenario.settings, claim)
    writer.write(Progress(stages=3, stages_done=1, tasks=20, tasks_done=5, ui_url="http://127.0.0.1:4040").as_json())
    writer.write(Progress(stages=3, stages_done=1, tasks=20, tasks_done=6, ui_url="http://127.0.0.1:4040").as_json())

    bars, lines = Console(file=io.StringIO(), force_terminal=True, width=160), Console(file=io.StringIO(), width=160)
    for screen in (bars, lines):
        with pytest.raises(WaitTimeoutError):
            progress.watch_run(scenario.engine, "pair", "one", console=screen, timeout_s=0)
    progress_text = "1 of 3 stages, 6 of 20 Spark tasks, http://127.0.0.1:4040"
    assert progress_text in bars.file.getvalue()  # type: ignore[attr-defined]
    assert f"first: {progress_text}" in lines.file.getvalue()  # type: ignore[attr-defined]
    first, second = transact(scenario.engine, reads.task_instances, "pair", "one")
    assert (first["progress"]["tasks_done"], second["progress"]) == (6, None)

    assert scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored
    writer.write(Progress(tasks=99).as_json())
    writer.close()
    assert scenario.rows("select (progress->>'tasks')::int from task_progress") == [(20,)]
    scenario.sql("update task_instance set try_number = 2 where task_id = 'first'")
    assert transact(scenario.engine, reads.task_instance, "pair", "one", "first")["progress"] is None
    scenario.sql("delete from dag_run")
    assert scenario.rows("select count(*) from task_progress") == [(0,)]


def test_each_change_is_one_line_and_printed_once(scenario: Scenario, background: Callable[..., None]) -> None:
    scenario.trigger("pair", run_id="one")
    screen = Console(file=io.StringIO(), width=200)
    background(lambda: scenario.run_to_end(outcome=lambda claim: TaskState.FAILED))

    progress.watch_run(scenario.engine, "pair", "one", console=screen)

    lines = [line.split(" ", 1)[1] for line in screen.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert sum(line.startswith("  first: failed") for line in lines) == 1
    assert sum(line.startswith("  second: upstream_failed") for line in lines) == 1


def test_time_over_and_no_such_run_are_errors_of_their_own(scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    screen = Console(file=io.StringIO())

    with pytest.raises(WaitTimeoutError, match="is queued after 0 s"):
        progress.watch_run(scenario.engine, "pair", "one", console=screen, timeout_s=0)
    with pytest.raises(NotFoundError, match="no run 'two'"):
        progress.watch_run(scenario.engine, "pair", "two", console=screen)


def test_only_recently_ended_task_instances_are_read_again(scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end()
    scenario.sql("update task_instance set ended_at = ended_at - interval '1 minute' where task_id = 'first'")

    every = transact(scenario.engine, reads.changes, "pair", "one")
    late = transact(scenario.engine, reads.changes, "pair", "one", since=every["ended"][-1]["ended_at"])

    assert [task["task_id"] for task in every["ended"]] == ["first", "second"]
    assert [task["task_id"] for task in late["ended"]] == ["second"]
    assert every["counts"] == {"success": 2}
    assert every["ended"][-1]["ended_at"] - every["ended"][0]["ended_at"] > timedelta(seconds=30)
