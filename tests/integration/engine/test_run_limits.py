"""Limits of runs: max_active_runs, dagrun_timeout, max_consecutive_failed_dag_runs."""

from support.scenario import Scenario, chain


def running(scenario: Scenario, dag_id: str) -> int:
    return int(scenario.rows("select count(*) from dag_run where dag_id = %s and state = 'running'", dag_id)[0][0])


def queue_runs(scenario: Scenario, dag_id: str, count: int) -> None:
    """Queued runs as they are after a long pause, an hour apart."""
    scenario.sql(
        "insert into dag_run (dag_id, run_id, run_type, state, version_id, logical_date, run_after)"
        " select d.dag_id, 'r' || n, 'manual', 'queued', d.version_id, now() - make_interval(hours => n),"
        " now() - make_interval(hours => n) from dag d, generate_series(1, %s) n where d.dag_id = %s",
        count,
        dag_id,
    )


def test_500_queued_runs_of_one_dag_do_not_delay_another(scenario: Scenario) -> None:
    scenario.add(chain("busy", 1, max_active_runs=1))
    queue_runs(scenario, "busy", 500)
    scenario.add(chain("other", 1))
    other = scenario.trigger("other")

    scenario.turn()

    assert scenario.run_state(other) == "running"
    assert running(scenario, "busy") == 1
