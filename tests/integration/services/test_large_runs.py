"""Large runs and many runs: higher ranks become ready first, several schedulers share the work, and no row is lost."""

from collections.abc import Callable

import pytest
from support.scenario import Scenario, dag
from support.waiting import eventually

from paceline.states import Decision, TaskState
from scheduler.messaging.wakeups import Wakeups
from scheduler.services.promote import Promote, foremost
from scheduler.services.service import AT_ONCE
from scheduler.store.db.rows import array_literal
from scheduler.store.runs import instances, runs


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
        states = instances.states_of(connection, [run])[run]

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
