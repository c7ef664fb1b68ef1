"""`watch_run` on a terminal, and its timeout."""

import io
from collections.abc import Callable
from datetime import timedelta

import pytest
from rich.console import Console
from support.scenario import Scenario

from paceline.exceptions import NotFoundError, WaitTimeoutError
from paceline.states import TaskState
from scheduler.cli import progress
from scheduler.store.db.database import transact
from scheduler.store.read import reads
from scheduler.store.worker.claims import Ending
from scheduler.store.worker.dispatches import ProgressWriter
from workers.process.progress import Progress


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
