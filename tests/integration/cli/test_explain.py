"""`paceline runs explain` lists the events of a run in order."""

from collections.abc import Callable
from typing import Any

from click.testing import CliRunner
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.cli import paceline
from scheduler.store.db.database import transact
from scheduler.store.read import history
from scheduler.store.worker.claims import Claim, Ending

from .conftest import Cli


def outcome(claim: Claim) -> Any:
    first = claim.task_id == "t001" and claim.try_number == 1
    return Ending(TaskState.UP_FOR_RETRY, delay_s=0.0, reason="ValueError: no") if first else TaskState.SUCCESS


def test_a_story_has_each_step_in_order(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 2, task={"retries": 1}), run_id="r")
    scenario.run_to_end(outcome=outcome)
    steps = transact(scenario.engine, history.story, scenario.settings, "c", "r")

    assert [step["at"] for step in steps] == sorted(step["at"] for step in steps)
    texts = [(step["task_id"], step["text"]) for step in steps]
    assert texts[0][0] is None and texts[0][1].startswith("Created as queued")
    assert texts[-1] == (None, texts[-1][1]) and texts[-1][1].startswith("Ended as success")
    second = [text for task, text in texts if task == "t001"]
    assert any("ValueError: no" in text for text in second) and second[-1].startswith("Succeeded")
    assert sum("started by" in text or "Started by" in text for text in second) == 2


def test_the_command_prints_a_line_for_each_step(scenario: Scenario, monkeypatch: Any) -> None:
    run = scenario.finish(chain("c", 1), run_id="r")
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


def test_a_story_lists_a_retry_a_full_pool_a_lost_worker_and_a_clear_in_order(
    cli: Cli, make_scenario: Callable[..., Scenario]
) -> None:
    """`first` holds the only slot of the pool for 40 s. `second` fails once, is lost with its worker, and is cleared in the end."""
    scenario = make_scenario(worker={"heartbeat_timeout": 4.0})
    scenario.pool("narrow", 1)
    tasks = {"first": {"priority_weight": 9}, "second": {"retries": 2}}
    scenario.triggered(dag("c", {"first": [], "second": []}, task={"pool": "narrow"}, options=tasks), run_id="r")
    ends = {1: Ending(TaskState.UP_FOR_RETRY, delay_s=0.0, reason="ValueError: no")}
    scenario.turn()
    scenario.work()
    scenario.sql(
        "update event set at = at - interval '40 s' where to_state = 'scheduled'"
        " and task_instance_id in (select id from task_instance where task_id = 'second')"
    )
    scenario.sql(
        "update event set queued_at = queued_at - interval '80 s', started_at = started_at - interval '80 s'"
        " where queued_at is not null"
    )
    scenario.turn()
    assert scenario.work(lambda claim: ends[claim.try_number]) == 1
    scenario.turn()
    (message,) = scenario.messages()
    assert scenario.claim(message) is not None
    scenario.sql("update crash_free set since = since - interval '1 hour'")  # PostgreSQL has run for long
    scenario.sql("update process set heartbeat_at = clock_timestamp() - interval '1 hour' where kind = 'worker'")

    def is_lost() -> bool:
        scenario.turn()
        return scenario.states()["second"] != "running"

    eventually(is_lost)  # PostgreSQL has to run for the time of a lost heartbeat first
    scenario.sql("update process set heartbeat_at = clock_timestamp(), stopped_at = null where kind = 'worker'")
    scenario.run_to_end(turns=10)
    cleared = cli("tasks", "clear", "c", "r", "second", "--yes")
    assert cleared.exit_code == 0, cleared.output
    scenario.run_to_end(turns=10)

    lines = cli("runs", "explain", "c", "r").stdout.splitlines()

    events = [line.partition(": ")[2] for line in lines if " second: " in line]
    expected = [
        "Scheduled", "Waited 4", "Started", "Failed",
        *("Scheduled", "Queued", "Started", "Failed"),
        *("Scheduled", "Queued", "Started", "Succeeded"),
        *("Cleared", "Scheduled", "Queued", "Started", "Succeeded"),
    ]  # fmt: skip
    assert [text[: len(start)] for text, start in zip(events, expected, strict=True)] == expected, "\n".join(lines)
    assert "s for pool 'narrow' with 1 of 1 slot in use by c.first of run 'r', then queued" in events[1]
    failures = [text for text in events if text.startswith("Failed")]
    assert "ValueError: no" in failures[0] and "sent no heartbeat" in failures[1]
    of_run = [line.partition(": ")[2] for line in lines if " run: " in line]
    assert [text.split()[0] for text in of_run] == ["Created", "Started", "Ended", "Queued", "Started", "Ended"]
