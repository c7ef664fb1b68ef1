"""`paceline tasks logs`: whole logs, large logs, and following a log that grows."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.scenario import Scenario, dag
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.settings import log_paths

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
