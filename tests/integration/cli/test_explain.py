"""`paceline runs explain` tells a run in order."""

from typing import Any

from click.testing import CliRunner
from support.scenario import Scenario, chain

from scheduler.cli import paceline
from scheduler.states import TaskState
from scheduler.store.db.database import transact
from scheduler.store.queries import run_story
from scheduler.store.worker.claims import Claim, Ending


def outcome(claim: Claim) -> Any:
    first = claim.task_id == "t001" and claim.try_number == 1
    return Ending(TaskState.UP_FOR_RETRY, delay_s=0.0, reason="ValueError: no") if first else TaskState.SUCCESS


def test_a_story_has_each_step_in_order(scenario: Scenario) -> None:
    scenario.add(chain("c", 2, task={"retries": 1}))
    scenario.trigger("c", run_id="r")
    scenario.run_to_end(outcome=outcome)
    steps = transact(scenario.engine, run_story.story, "c", "r")

    assert [step["at"] for step in steps] == sorted(step["at"] for step in steps)
    texts = [(step["task_id"], step["text"]) for step in steps]
    assert texts[0][0] is None and texts[0][1].startswith("Created as queued")
    assert texts[-1] == (None, texts[-1][1]) and texts[-1][1].startswith("Ended as success")
    second = [text for task, text in texts if task == "t001"]
    assert any("ValueError: no" in text for text in second) and second[-1].startswith("Succeeded")
    assert sum("started by" in text or "Started by" in text for text in second) == 2


def test_the_command_prints_a_line_for_each_step(scenario: Scenario, monkeypatch: Any) -> None:
    scenario.add(chain("c", 1))
    run = scenario.trigger("c", run_id="r")
    scenario.run_to_end()
    scenario.sql(
        "insert into notice (kind, dag_run_id, ended_at, error) values ('on_failure', %s, clock_timestamp(), 'it\x1b crashed')", run
    )
    for name, value in {
        "HOME": str(scenario.settings.home), "DATABASE_URL": scenario.settings.database_url,
        "BROKER_URL": scenario.settings.broker_url,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"PACELINE_{name}", value)
    done = CliRunner().invoke(paceline, ["runs", "explain", "c", "r"])
    lines = done.output.splitlines()

    assert done.exit_code == 0, done.output
    assert any(" run: Created as queued" in line for line in lines)
    assert any(" t000: Succeeded" in line for line in lines)
    assert any("Could not deliver the callback on_failure: it\\x1b crashed." in line for line in lines)
    assert CliRunner().invoke(paceline, ["runs", "explain", "c", "none"]).exit_code == 3
