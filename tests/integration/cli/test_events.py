"""The events of a run in the database, and `paceline runs explain`, which lists them in order."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.states import TaskState
from paceline.states import TaskState as S
from scheduler.cli import paceline
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.read import history
from scheduler.store.upkeep import processes
from scheduler.store.worker.claims import Claim, Ending

from .conftest import Cli

Moves = list[tuple[str | None, str | None, str | None]]


@pytest.fixture
def unrecorded(settings: Settings) -> Iterator[Scenario]:
    """As `scenario`, without events."""
    scenario = Scenario(settings.model_copy(update={"core": settings.core.model_copy(update={"record_events": False})}))
    scenario.add(dag("pair", {"first": [], "second": ["first"]}))
    yield scenario
    scenario.close()


def moves(cli: Cli, run_id: str) -> Moves:
    events = cli.json("runs", "show", "pair", run_id, "--events")["events"]
    assert events == sorted(events, key=lambda event: event["at"])
    return [(event["task_id"], event["from_state"], event["to_state"]) for event in events]


def test_the_events_of_a_run_are_complete(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end()

    story = moves(cli, "one")
    assert [move for move in story if move[0] is None] == [
        (None, None, "queued"), (None, "queued", "running"), (None, "running", "success")
    ]  # fmt: skip
    assert [move for move in story if move[0] == "first"] == [
        ("first", None, "scheduled"), ("first", "scheduled", "queued"),
        ("first", "queued", "running"), ("first", "running", "success"),
    ]  # fmt: skip
    assert [move for move in story if move[0] == "second"] == [
        ("second", None, "queued"), ("second", "queued", "running"), ("second", "running", "success")
    ]  # fmt: skip


def test_a_task_ends_before_the_task_that_its_report_queues(cli: Cli, scenario: Scenario) -> None:
    scenario.finish(chain("c", 4), run_id="one")

    events = [event for event in cli.json("runs", "show", "c", "one", "--events")["events"] if event["task_id"]]
    in_order = [(event["task_id"], event["to_state"]) for event in events]
    tasks = ["t000", "t001", "t002", "t003"]
    assert in_order == [("t000", "scheduled"), *((task, state) for task in tasks for state in ("queued", "running", "success"))]


def test_steps_of_a_continued_dispatch_are_recorded(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.turn()
    assert moves(cli, "one")[-1] == ("first", "scheduled", "queued")
    for message in scenario.messages():
        assert scenario.claim(message) is not None

    assert moves(cli, "one")[-1] == ("first", "queued", "running")


def test_each_try_and_each_poke_has_its_own_steps(cli: Cli, scenario: Scenario) -> None:
    scenario.triggered(dag("poll", {"sensor": []}, task={"retries": 1}), run_id="one")
    endings = iter([
        Ending(S.UP_FOR_RESCHEDULE, delay_s=0.0, resume={"pokes": 1}), Ending(S.UP_FOR_RETRY, delay_s=0.0), Ending(S.SUCCESS)
    ])  # fmt: skip
    scenario.run_to_end(outcome=lambda claim: next(endings))

    events = [event for event in cli.json("runs", "show", "poll", "one", "--events")["events"] if event["task_id"]]
    assert [(event["try_number"], event["from_state"], event["to_state"]) for event in events] == [
        (1, None, "scheduled"), (1, "scheduled", "queued"), (1, "queued", "running"), (1, "running", "up_for_reschedule"),
        (1, "up_for_reschedule", "scheduled"), (1, "scheduled", "queued"), (1, "queued", "running"), (1, "running", "up_for_retry"),
        (2, "up_for_retry", "scheduled"), (2, "scheduled", "queued"), (2, "queued", "running"), (2, "running", "success"),
    ]  # fmt: skip


def test_each_event_names_the_cause_and_the_reason_of_the_change(cli: Cli, scenario: Scenario) -> None:
    database.act_as(scenario.engine, scenario.schedulers[0].scheduler_id)
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end(outcome=lambda claim: S.FAILED)
    done = cli("tasks", "mark", "pair", "one", "second", "success")
    assert done.exit_code == 0, done.output

    events = cli.json("runs", "show", "pair", "one", "--events")["events"]
    actors = {(event["task_id"], event["to_state"]): (event["actor"], event["reason"]) for event in events}
    assert actors["first", "scheduled"][0] == actors["first", "queued"][0] == scenario.schedulers[0].scheduler_id
    assert actors["first", "failed"][0] == actors["first", "running"][0] == scenario.worker_id
    assert actors["second", "upstream_failed"] == (scenario.worker_id, "1 upstream task failed: first")
    assert actors["second", "success"] == (f"cli:{database.user()}", "marked success")


def test_a_change_without_a_commit_leaves_no_event(cli: Cli, scenario: Scenario) -> None:
    run = scenario.trigger("pair", run_id="one")
    with scenario.engine.connect() as connection:
        connection.exec_driver_sql("update dag_run set state = 'running', started_at = now() where id = %s", (run,))
        connection.rollback()

    assert moves(cli, "one") == [(None, None, "queued")]


def test_a_process_that_gets_another_id_acts_under_it(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="before")
    scenario.run_to_end()
    scenario.trigger("pair", run_id="one")
    second = processes.register(scenario.engine, kind="worker", name="w", host="h", pid=1, queues=["default"], concurrency=1)
    scenario.hot.worker_id = second
    scenario.run_to_end()

    events = cli.json("runs", "show", "pair", "one", "--events")["events"]
    assert {event["actor"] for event in events if event["from_state"] == "running"} == {second}


def test_a_setting_turns_events_off(cli: Cli, unrecorded: Scenario) -> None:
    unrecorded.trigger("pair", run_id="one")
    unrecorded.run_to_end()

    assert moves(cli, "one") == []
    assert "core.record_events" in cli("runs", "show", "pair", "one", "--events").stderr


def test_the_events_of_a_deleted_run_go_with_it(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    kept_run = scenario.trigger("pair", run_id="two")
    scenario.run_to_end()
    assert cli("runs", "delete", "pair", "one", "--yes").exit_code == 0

    assert scenario.rows("select distinct dag_run_id from event") == [(kept_run,)]


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
