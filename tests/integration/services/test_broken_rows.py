"""A stored DAG that cannot be read stops only its own runs."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event
from support.scenario import Scenario, chain

from scheduler.services.plan import Plan
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.read import overview, reads, why
from scheduler.store.upkeep import processes

HOURLY = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
START = datetime(2026, 3, 1, tzinfo=UTC)


def break_versions(scenario: Scenario, dag_id: str) -> None:
    scenario.sql("update dag_version set data = '{}' where dag_id like %s", dag_id)


def test_runs_of_an_unreadable_version_stop_no_other_run(scenario: Scenario) -> None:
    scenario.add(chain("bad", 2))
    scenario.add(chain("good", 2))
    for number in range(5):
        scenario.trigger("bad", run_id=f"r{number}")
    break_versions(scenario, "bad")
    good = scenario.trigger("good")

    for _ in range(4):
        scenario.turn()
        scenario.work()

    assert scenario.run_state(good) == "success"
    assert scenario.rows("select distinct state from dag_run where dag_id = 'bad'") == [("running",)]


def test_a_duration_that_no_calendar_holds_stops_no_other_run(scenario: Scenario) -> None:
    """Of a version that was stored before such durations were refused."""
    endless = 86_400e9
    scenario.add(chain("bad", 1, dagrun_timeout_s=endless, task={"retries": 1, "retry_delay_s": endless}))
    scenario.add(chain("good", 2))
    bad, good = scenario.trigger("bad"), scenario.trigger("good")

    scenario.turn()
    assert (scenario.run_state(bad), scenario.run_state(good)) == ("running", "running")
    for message in scenario.messages():
        assert scenario.claim(message) is not None
        transact(scenario.engine, processes.fail_lost, *message, "its process died")

    assert set(scenario.states(bad).values()) == {"up_for_retry"}


def test_more_unreadable_dags_than_one_turn_plans_stop_no_other_dag(scenario: Scenario) -> None:
    limit = scenario.settings.scheduler.max_dagruns_to_create_per_loop
    options = {"schedule": HOURLY, "start_date": START.isoformat()}
    for number in range(limit + 2):
        scenario.add(chain(f"bad{number}", 1, **options))
    break_versions(scenario, "bad%")
    scenario.add(chain("good", 1, **options))
    plan = Plan(scenario.engine, scenario.settings, Versions())

    planned = [plan.plan(START + timedelta(minutes=90, seconds=second)) for second in range(3)]

    assert [made.run_id for one in planned for made in one.runs] == ["scheduled__2026-03-01T01:00:00+00:00"]
    assert sum(len(one.broken) for one in planned) == limit + 2

    again = plan.plan(START + timedelta(minutes=95))
    assert len(again.broken) == limit, "they are tried again, in case something was repaired"


@pytest.mark.parametrize("data", ["{}", "[]", '{"tasks": ["t"]}', '"text"'])
def test_a_run_that_cannot_be_decided_is_shown_and_continues_by_itself(scenario: Scenario, data: str) -> None:
    scenario.add(chain("bad", 1))
    scenario.add(chain("good", 1))
    bad, good = scenario.trigger("bad", run_id="r"), scenario.trigger("good")
    (stored,) = scenario.rows("select data::text from dag_version where dag_id = 'bad'")
    scenario.sql("update dag_version set data = %s where dag_id = 'bad'", data)

    scenario.turn()
    scenario.work()
    scenario.turn()

    assert scenario.run_state(good) == "success"
    error = transact(scenario.engine, reads.run, "bad", "r")["scheduling_error"]
    assert error.startswith("The stored DAG version ")
    assert [run["scheduling_error"] for run in transact(scenario.engine, reads.runs, dag_id="bad")] == [error]
    assert [run["run_id"] for run in transact(scenario.engine, overview.undecidable)] == ["r"]
    sentences = transact(scenario.engine, why.why, scenario.settings, "bad", "r", "t000")["waiting_for"]
    assert error.rstrip(".") in sentences[0] and not any("Nothing blocks it" in sentence for sentence in sentences)

    scenario.sql("update dag_version set data = %s where dag_id = 'bad'", *stored)
    scenario.run_to_end()

    assert scenario.run_state(bad) == "success"
    assert transact(scenario.engine, reads.run, "bad", "r")["scheduling_error"] is None
    assert transact(scenario.engine, overview.undecidable) == []


def test_a_run_whose_statement_fails_stops_no_other_run(make_scenario: Callable[..., Scenario]) -> None:
    # The sweep takes runs in the order in which they were examined, so the first would be tried first forever.
    scenario = make_scenario(scheduler={"max_dagruns_per_loop_to_schedule": 1})
    scenario.add(chain("held", 1))
    scenario.add(chain("good", 1))
    held = scenario.trigger("held", run_id="r")
    for scheduler in scenario.schedulers:
        event.listen(scheduler.engine, "begin", lambda connection: connection.exec_driver_sql("set local lock_timeout = '50ms'"))
    with scenario.engine.begin() as connection:
        connection.exec_driver_sql("select 1 from task_instance where dag_run_id = %s for update", (held,))
        scenario.turn()
        good = scenario.trigger("good")
        for _ in range(4):
            scenario.turn()
            scenario.work()

        assert scenario.run_state(good) == "success"
        assert "lock timeout" in transact(scenario.engine, reads.run, "held", "r")["scheduling_error"]

    scenario.run_to_end()
    assert scenario.run_state(held) == "success"
