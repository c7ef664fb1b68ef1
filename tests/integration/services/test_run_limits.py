"""Limits of runs: max_active_runs, dagrun_timeout, max_consecutive_failed_dag_runs."""

from datetime import UTC, datetime, timedelta

import pytest
from support.scenario import Scenario, chain, dag

from paceline.states import TaskState
from scheduler.store.runs import runs
from scheduler.store.worker import dispatches
from scheduler.store.worker.claims import Ending

START = datetime(2026, 3, 1, tzinfo=UTC)


def running(scenario: Scenario, dag_id: str) -> int:
    return int(scenario.rows("select count(*) from dag_run where dag_id = %s and state = 'running'", dag_id)[0][0])


def queue_runs(scenario: Scenario, dag_id: str, count: int) -> None:
    """Queued runs as they are after a long pause, an hour apart."""
    scenario.sql(
        "with made as (insert into dag_run (dag_id, run_id, run_type, state, version_id, logical_date, run_after)"
        " select d.dag_id, 'r' || n, 'manual', 'queued', d.version_id, now() - make_interval(hours => n),"
        " now() - make_interval(hours => n) from dag d, generate_series(1, %s) n where d.dag_id = %s returning id)"
        " insert into task_instance (dag_run_id, task_no, task_id, queue, pool)"
        " select id, 0, 't000', 'default', 'default_pool' from made",
        count,
        dag_id,
    )


def test_500_queued_runs_of_one_dag_do_not_delay_another(scenario: Scenario) -> None:
    scenario.add(chain("busy", 1, max_active_runs=1))
    queue_runs(scenario, "busy", 500)
    other = scenario.triggered(chain("other", 1))

    scenario.turn()

    assert scenario.run_state(other) == "running"
    assert running(scenario, "busy") == 1


def test_starting_costs_the_same_for_any_number_of_waiting_runs(scenario: Scenario) -> None:
    scenario.add(chain("busy", 1, max_active_runs=1))

    def pages(queued: int) -> int:
        queue_runs(scenario, "busy", queued)
        scenario.turn()
        assert running(scenario, "busy") == 1
        scenario.sql("update dag_run set state = 'queued', started_at = null where state = 'running'")
        read = 0
        with scenario.engine.connect() as connection:
            for statement in (runs.STARTABLE, runs.START):
                explained = connection.exec_driver_sql(
                    f"explain (analyze, buffers, format json) {statement}",
                    {"dags": ["busy"], "backfills": [], "most": runs.MOST_STARTS},
                )
                plan = explained.scalar_one()[0]["Plan"]
                read += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            connection.rollback()
        return read

    few = pages(10)
    scenario.sql("delete from dag_run")
    assert pages(5000) <= few + 20  # indexes are a page deeper


def test_an_older_run_gets_the_place_before_newer_ones(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, max_active_runs=1))
    queue_runs(scenario, "c", 3)

    scenario.turn()
    assert scenario.rows("select run_id from dag_run where state = 'running'") == [("r3",)]
    scenario.sql("update dag_run set state = 'queued', started_at = null")
    scenario.sql("update dag_run set state = 'success', started_at = now(), ended_at = now() where run_id = 'r2'")
    scenario.sql("update dag_run set run_after = run_after - interval '1 day' where run_id = 'r1'")
    scenario.turn()

    assert scenario.rows("select run_id from dag_run where state = 'running'") == [("r1",)]


@pytest.mark.parametrize("kind", ["scheduled", "manual", "asset_triggered"])
def test_the_next_run_starts_after_the_end_of_any_run(scenario: Scenario, kind: str) -> None:
    scenario.add(chain("c", 1, max_active_runs=1))
    queue_runs(scenario, "c", 2)
    scenario.turn()
    scenario.sql("update dag_run set run_type = %s where state = 'running'", kind)

    scenario.work()
    scenario.turn()
    scenario.turn()

    assert scenario.rows("select run_id, state from dag_run order by run_after") == [("r2", "success"), ("r1", "running")]


def finish(scenario: Scenario, dag_id: str, outcomes: str) -> None:
    """Runs of ever later logical dates with the given ends: s or f each."""
    for number, letter in enumerate(outcomes):
        count = scenario.rows("select count(*) from dag_run where dag_id = %s", dag_id)[0][0]
        scenario.trigger(dag_id, logical_date=START + timedelta(days=count), run_id=f"{count}-{number}{letter}")
        state = TaskState.SUCCESS if letter == "s" else TaskState.FAILED
        scenario.run_to_end(outcome=lambda claim, state=state: state)


def is_paused(scenario: Scenario, dag_id: str) -> bool:
    return bool(scenario.rows("select is_paused from dag_schedule where dag_id = %s", dag_id)[0][0])


def test_a_dag_whose_last_runs_all_failed_is_paused(scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    scenario.add(chain("c", 1, max_consecutive_failed_dag_runs=3))
    scenario.add(chain("unlimited", 1))

    finish(scenario, "unlimited", "ffff")
    finish(scenario, "c", "ffsff")
    assert not is_paused(scenario, "c")
    finish(scenario, "c", "f")

    assert is_paused(scenario, "c")
    assert not is_paused(scenario, "unlimited")
    assert "DAG c is paused: its last 3 runs failed" in caplog.text


def test_runs_in_a_row_are_those_of_neighboring_logical_dates(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, max_consecutive_failed_dag_runs=2))
    finish(scenario, "c", "sf")

    scenario.trigger("c", logical_date=START - timedelta(days=1), run_id="older")
    scenario.run_to_end(outcome=lambda claim: TaskState.FAILED)

    assert not is_paused(scenario, "c")


def test_runs_without_a_logical_date_count_too(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, max_consecutive_failed_dag_runs=2))
    finish(scenario, "c", "f")
    scenario.sql("update dag_run set logical_date = null")

    finish(scenario, "c", "f")

    assert is_paused(scenario, "c")


def overdue(scenario: Scenario) -> None:
    scenario.sql("update dag_run set timeout_at = clock_timestamp() - interval '1 second' where state = 'running'")


def test_a_run_that_takes_too_long_fails_and_its_tasks_are_skipped(scenario: Scenario) -> None:
    run = scenario.start(dag("c", {"done": [], "running": ["done"], "after": ["running"], "waits": ["done"]}, dagrun_timeout_s=60))
    scenario.work()
    scenario.turn()
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    assert scenario.follower.report(claims["waits"], Ending(TaskState.UP_FOR_RETRY, delay_s=100.0)).is_stored
    ((lasts_s,),) = scenario.rows("select extract(epoch from timeout_at - started_at)::float from dag_run")
    assert 59 <= lasts_s <= 61

    scenario.turn()
    assert scenario.run_state(run) == "running"
    overdue(scenario)
    scenario.turn()

    assert scenario.run_state(run) == "failed"
    assert scenario.states(run) == {"done": "success", "running": "shutdown", "after": "skipped", "waits": "skipped"}
    claim = claims["running"]
    assert not scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored
    assert dispatches.end_as_requested(scenario.hot, claim)
    assert scenario.states(run)["running"] == "skipped"
    ((ended_at,),) = scenario.rows("select ended_at from dag_run")
    scenario.turn()
    assert scenario.rows("select ended_at, state from dag_run") == [(ended_at, "failed")]


def test_a_run_that_started_again_has_its_whole_timeout_again(scenario: Scenario) -> None:
    run = scenario.start(chain("c", 1, dagrun_timeout_s=60))
    overdue(scenario)
    scenario.sql("update dag_run set state = 'queued', started_at = null")

    scenario.turn()
    scenario.turn()

    assert scenario.run_state(run) == "running"


def test_a_run_without_dagrun_timeout_has_none(scenario: Scenario) -> None:
    scenario.start(chain("c", 1))

    assert scenario.rows("select state, timeout_at from dag_run") == [("running", None)]
