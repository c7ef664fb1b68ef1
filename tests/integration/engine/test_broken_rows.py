"""A stored DAG that cannot be read stops its own runs and nobody else's."""

from datetime import UTC, datetime, timedelta

from support.scenario import Scenario, chain

from scheduler.services.plan import Plan
from scheduler.store.versions import Versions

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


def test_more_unreadable_dags_than_one_turn_plans_stop_no_other_dag(scenario: Scenario) -> None:
    limit = scenario.settings.scheduler.max_dagruns_to_create_per_loop
    options = {"schedule": HOURLY, "start_date": START.isoformat()}
    for number in range(limit + 2):
        scenario.add(chain(f"bad{number}", 1, **options))
    break_versions(scenario, "bad%")
    scenario.add(chain("good", 1, **options))
    plan = Plan(scenario.engine, scenario.settings, Versions())

    planned = [plan.run_once(START + timedelta(minutes=90, seconds=second)) for second in range(3)]

    assert [made.run_id for one in planned for made in one.runs] == ["scheduled__2026-03-01T01:00:00+00:00"]
    assert sum(len(one.broken) for one in planned) == limit + 2

    again = plan.run_once(START + timedelta(minutes=95))
    assert len(again.broken) == limit, "they are tried again, in case something was mended"
