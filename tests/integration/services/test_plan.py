"""The plan service: which runs are created, when, and by how many schedulers."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from support.scenario import Scenario, chain

from paceline.exceptions import ConflictError, PacelineError
from scheduler.services.plan import Plan
from scheduler.store.dags.versions import Versions

HOURLY = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
START = datetime(2026, 3, 1, tzinfo=UTC)


def hourly(**options: object) -> dict[str, object]:
    return {"schedule": HOURLY, "start_date": START.isoformat(), **options}


def plan(scenario: Scenario) -> Plan:
    return Plan(scenario.engine, scenario.settings, Versions())


def test_catchup_makes_every_interval_in_order_within_max_active_runs(scenario: Scenario) -> None:
    scenario.add(chain("c", 2, **hourly(catchup=True, max_active_runs=3)))

    plan(scenario).plan(START + timedelta(hours=10))

    assert scenario.scheduled_dates() == [START + timedelta(hours=number) for number in range(3)]
    assert scenario.rows("select count(*) from task_instance") == [(6,)]


def test_without_catchup_only_the_latest_run_is_made(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly()))

    planned = plan(scenario).plan(START + timedelta(hours=10, minutes=30))

    assert scenario.scheduled_dates() == [START + timedelta(hours=10)]
    assert [made.run_id for made in planned.runs] == ["scheduled__2026-03-01T10:00:00+00:00"]


def test_the_schedule_continues_after_the_last_planned_run(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly()))
    service = plan(scenario)
    for minutes in range(0, 240, 20):
        service.plan(START + timedelta(minutes=minutes))

    assert scenario.scheduled_dates() == [START + timedelta(hours=number) for number in range(4)]


def test_a_manual_run_never_moves_the_schedule(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly()))
    service = plan(scenario)
    service.plan(START + timedelta(minutes=30))
    scenario.trigger("c", logical_date=START + timedelta(days=30))

    service.plan(START + timedelta(hours=1))

    assert scenario.scheduled_dates() == [START, START + timedelta(hours=1)]


def test_a_new_version_with_another_schedule_is_planned_again_and_never_stalls(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly()))
    service = plan(scenario)
    service.plan(START + timedelta(hours=3))
    scenario.add(chain("c", 1, **hourly(schedule={"kind": "cron", "expression": "0 0 * * *", "timezone": "UTC"})))

    service.plan(START + timedelta(hours=4))
    service.plan(START + timedelta(days=1))

    assert scenario.scheduled_dates() == [START + timedelta(hours=3), START + timedelta(days=1)]


def test_a_paused_dag_gets_no_runs(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly()))
    scenario.sql("update dag_schedule set is_paused = true")

    plan(scenario).plan(START + timedelta(hours=3))

    assert scenario.scheduled_dates() == []


def test_once_is_one_run(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly(schedule={"kind": "once"})))
    for hours in range(3):
        plan(scenario).plan(START + timedelta(hours=hours))

    assert len(scenario.scheduled_dates()) == 1


def test_several_schedulers_make_each_run_once(make_scenario: Callable[..., Scenario]) -> None:
    import threading

    scenario = make_scenario()
    for number in range(20):
        scenario.add(chain(f"d{number}", 3, **hourly(catchup=True, max_active_runs=5)))

    def work() -> None:
        one = plan(scenario)
        while one.plan(START + timedelta(hours=5)).more:
            pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert scenario.rows("select count(*), count(distinct (dag_id, logical_date)) from dag_run") == [(100, 100)]
    assert scenario.rows("select count(*) from task_instance") == [(300,)]


def test_a_dag_that_cannot_be_planned_stops_no_other(scenario: Scenario) -> None:
    scenario.add(chain("bad", 1, **hourly(schedule={"kind": "from the future"})))
    scenario.add(chain("good", 1, **hourly()))

    planned = plan(scenario).plan(START + timedelta(hours=1))

    assert list(planned.broken) == ["bad"]
    assert [made.run_id for made in planned.runs] == ["scheduled__2026-03-01T01:00:00+00:00"]


def test_one_dag_with_a_long_queue_of_runs_does_not_delay_another(scenario: Scenario) -> None:
    scenario.add(chain("busy", 1, max_active_runs=1))
    for number in range(100):
        scenario.trigger("busy", run_id=f"r{number}")
    other = scenario.triggered(chain("other", 1))

    scenario.turn()

    assert scenario.run_state(other) == "running"
    assert scenario.rows("select count(*) from dag_run where dag_id = 'busy' and state = 'running'") == [(1,)]


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_conf_that_the_database_cannot_store_is_one_sentence(scenario: Scenario, character: str) -> None:
    scenario.add(chain("c", 1))

    with pytest.raises(PacelineError, match="conf cannot be stored"):
        scenario.trigger("c", conf={"key": f"a{character}b"})
    assert scenario.rows("select 1 from dag_run") == []


def test_a_second_run_of_the_same_id_is_refused(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 1), run_id="one")

    with pytest.raises(ConflictError, match="already has a run with run ID 'one'"):
        scenario.trigger("c", run_id="one")
