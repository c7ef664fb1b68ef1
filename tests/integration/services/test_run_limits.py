"""Limits of runs, large runs and many runs: higher ranks first, several schedulers share the work, and no row is lost."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.states import Decision, TaskState
from scheduler.messaging.wakeups import Wakeups
from scheduler.services.promote import Promote, foremost
from scheduler.services.service import AT_ONCE
from scheduler.store.db.rows import array_literal
from scheduler.store.runs import run_facts, runs
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


def scheduled(scenario: Scenario) -> set[str]:
    return {task_id for task_id, state in scenario.states().items() if state == "scheduled"}


def test_workers_begin_before_all_of_a_large_run_is_ready(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"max_tis_per_query": 8})
    names = [f"t{number:03}" for number in range(100)]
    run = scenario.triggered(dag("d", {name: [] for name in names}, options={"t077": {"priority_weight": 5}}))
    promote = scenario.schedulers[0].service(Promote)

    first_look = promote.examiner.examine([run])
    first = scheduled(scenario)
    second_look = promote.examiner.examine([run])

    assert (first_look.unfinished, second_look.unfinished) == ({run}, set())
    assert first == {"t077", *names[:7]}
    assert scheduled(scenario) == set(names)


def test_of_many_decisions_final_states_and_the_best_ranked_come_first() -> None:
    plan = dag("d", {"a": [], "b": [], "c": []}, options={"b": {"priority_weight": 9}})
    ready = [Decision(no, TaskState.SCHEDULED, "") for no in (0, 1)]
    skipped = Decision(2, TaskState.SKIPPED, "")

    assert foremost(plan, [*ready, skipped], 2) == [skipped, ready[1]]
    assert foremost(plan, [*ready, skipped], 3) == [*ready, skipped]


def test_states_of_plain_and_mapped_task_instances_are_read_by_number_and_index(scenario: Scenario) -> None:
    options = {"m": {"expand": {"kind": "product", "inputs": [{"literal": 3}]}}}
    run = scenario.start(dag("d", {"a": [], "m": [], "z": ["a", "m"]}, options=options))
    scenario.sql("update task_instance set state = 'skipped', ended_at = now() where task_id = 'm' and map_index = 1")

    with scenario.engine.begin() as connection:
        states = run_facts.states_of(connection, [run])[run]

    queued = TaskState.QUEUED
    assert states == {0: {-1: queued}, 1: {0: queued, 1: TaskState.SKIPPED, 2: queued}, 2: {-1: TaskState.NONE}}


@pytest.mark.parametrize("values", [[], ["", "NULL", None, 'a "b"', "c\\d", "{e,f}", " g ", "\n"]])
def test_the_text_of_an_array_is_read_as_it_was_meant(scenario: Scenario, values: list[str | None]) -> None:
    assert scenario.rows("select %s::text[]", array_literal(values)) == [(values,)]
    assert scenario.rows("select %s::int[]", array_literal([1, None, -2])) == [([1, None, -2],)]


def scheduled_in_transactions(scenario: Scenario) -> int:
    return scenario.rows("select count(distinct xmin::text) from task_instance where state = 'scheduled'")[0][0]


def test_plain_runs_are_examined_in_one_transaction_and_fail_fast_runs_each_in_its_own(scenario: Scenario) -> None:
    promote = scenario.schedulers[0].service(Promote)
    scenario.add(dag("d", {"a": [], "b": ["a"]}))
    plain = [scenario.trigger("d", run_id=f"r{number}") for number in range(5)]
    promote.examiner.examine(plain)
    assert scheduled_in_transactions(scenario) == 1

    scenario.sql("delete from dag_run")
    scenario.add(dag("f", {"a": [], "b": ["a"]}, fail_fast=True))
    for number in range(3):
        scenario.trigger("f", run_id=f"r{number}")
    promote.examiner.examine([])
    assert scheduled_in_transactions(scenario) == 3


def test_several_schedulers_share_many_queued_runs(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2)
    first, second = (one.service(Promote) for one in scenario.schedulers)
    scenario.add(dag("d", {"a": []}, max_active_runs=1000))
    queued = [scenario.trigger("d", run_id=f"r{number}") for number in range(runs.MOST_STARTS + 10)]

    started = first.examiner.examine([]).started
    rest = second.examiner.examine([]).started

    assert (started, rest) == (queued[: runs.MOST_STARTS], queued[runs.MOST_STARTS :])


def test_a_pass_that_started_runs_is_repeated_only_if_more_may_wait(scenario: Scenario) -> None:
    promote = scenario.schedulers[0].service(Promote)
    scenario.add(dag("d", {"a": []}, max_active_runs=1000))
    promote.hint([scenario.trigger("d", run_id="alone")])
    assert promote.run_once().again_in_s is None
    for number in range(runs.MOST_STARTS):
        scenario.trigger("d", run_id=f"r{number}")

    assert promote.run_once().again_in_s == AT_ONCE


def test_schedulers_share_wakeups_that_are_sent_at_once(scenario: Scenario) -> None:
    first, second = Wakeups(scenario.settings), Wakeups(scenario.settings)
    tokens = {f"run:{number}" for number in range(1, 61)}
    first.wake(*tokens)

    taken, rest = first.wait(1.0), set[str]()

    # While the first works on its rows, the second reads the others.
    eventually(lambda: rest.update(second.wait(1.0) or ()) or len(rest) == len(tokens - taken))
    assert taken and rest
    assert (taken | rest, taken & rest) == (tokens, set())
