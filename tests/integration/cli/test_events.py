"""Every change of a run or task instance is an event with its time, both states, its cause and its reason."""

from collections.abc import Iterator

import pytest
from support.scenario import Scenario, chain, dag

from paceline.states import TaskState as S
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.upkeep import processes
from scheduler.store.worker.claims import Ending

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
