"""depends_on_past and wait_for_downstream, beside several runs of one DAG, with follow on."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from support.scenario import Scenario, dag

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.worker.claims import Claim, Ending

S = TaskState


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def two(**options: Any) -> SerializedDag:
    own = options.pop("own", {"a": {"depends_on_past": True}})
    return dag("p", {"a": [], "b": ["a"]}, options=own, **options)


def runs(scenario: Scenario, count: int) -> list[int]:
    return [scenario.trigger("p", run_id=f"r{number}", logical_date=day(number)) for number in range(1, count + 1)]


def test_a_task_waits_for_itself_in_the_run_before(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"scheduler_idle_sleep_time": 60})  # no poll: the worker's wakeup has to do it
    scenario.add(two())
    first, second, third = runs(scenario, 3)

    scenario.turn()
    assert [scenario.states(run)["a"] for run in (first, second, third)] == ["queued", "none", "none"]
    scenario.work()
    for _ in range(3):
        scenario.schedulers[0]._wait(threading.Event())
        scenario.schedulers[0].run_once()

    assert [scenario.states(run)["a"] for run in (first, second)] == ["success", "queued"]
    scenario.run_to_end()
    assert scenario.states(third) == {"a": "success", "b": "success"}


def test_a_failure_in_an_earlier_run_stops_later_runs_and_does_not_end_them(scenario: Scenario) -> None:
    scenario.add(two())
    first, second = runs(scenario, 2)

    for _ in range(4):
        scenario.turn()
        scenario.work(outcome=lambda claim: S.FAILED)

    assert scenario.run_state(first) == "failed"
    assert (scenario.states(second), scenario.run_state(second)) == ({"a": "none", "b": "none"}, "running")


def test_a_skip_before_is_as_good_as_a_success(scenario: Scenario) -> None:
    scenario.add(two())
    _, second = runs(scenario, 2)

    scenario.run_to_end(outcome=lambda claim: S.SKIPPED)

    assert scenario.run_state(second) == "success"


def test_wait_for_downstream_waits_for_direct_downstream_tasks_too(scenario: Scenario) -> None:
    scenario.add(two(own={"a": {"depends_on_past": True, "wait_for_downstream": True}}))
    first, second = runs(scenario, 2)
    scenario.turn()
    scenario.work()
    scenario.turn()
    assert scenario.states(first) == {"a": "success", "b": "queued"}
    assert scenario.states(second)["a"] == "none"

    scenario.work()
    scenario.turn()

    assert scenario.states(second)["a"] == "queued"


def test_a_worker_leaves_tasks_that_depend_on_the_past_to_the_scheduler(scenario: Scenario) -> None:
    """Row 19b of the known failures: a worker's follow must not overlook the run before."""
    scenario.add(two(own={"b": {"depends_on_past": True}}))
    first, second = runs(scenario, 2)
    scenario.turn()
    claims = {claim.dag_run_id: claim for message in scenario.messages() if (claim := scenario.claim(message))}

    scenario.follower.report(claims[second], Ending(S.SUCCESS))

    assert scenario.states(second)["b"] == "none"
    scenario.turn()
    assert scenario.states(second)["b"] == "none"
    scenario.follower.report(claims[first], Ending(S.SUCCESS))
    scenario.run_to_end()
    assert scenario.states(second)["b"] == "success"


@pytest.mark.parametrize(("ignore", "expected"), [(True, "queued"), (False, "none")])
def test_a_task_that_is_new_in_this_run_runs_by_default(scenario: Scenario, ignore: bool, expected: str) -> None:
    scenario.add(dag("p", {"b": []}))
    runs(scenario, 1)
    scenario.run_to_end()
    run = scenario.triggered(
        dag("p", {"a": []}, options={"a": {"depends_on_past": True, "ignore_first_depends_on_past": ignore}}),
        run_id="later",
        logical_date=day(9),
    )

    scenario.turn()

    assert scenario.states(run)["a"] == expected


@pytest.mark.parametrize("follow", [True, False])
def test_every_index_of_a_mapped_task_counts(make_scenario: Callable[..., Scenario], follow: bool) -> None:
    scenario = make_scenario(follow=follow)
    spec = {"expand": {"kind": "product", "inputs": [{"literal": 3}]}, "depends_on_past": True}
    scenario.add(dag("p", {"a": []}, options={"a": spec}))
    first, second = runs(scenario, 2)
    for _ in range(4):
        scenario.turn()
        scenario.work(outcome=lambda claim: S.FAILED if claim.map_index == 2 else S.SUCCESS)

    assert scenario.run_state(first) == "failed"
    assert set(scenario.states(second).values()) == {"none"}


def test_a_skip_may_wait_for_the_past_too(scenario: Scenario) -> None:
    own = {"b": {"depends_on_past": True, "wait_for_past_depends_before_skipping": True}}
    scenario.add(two(own=own))
    first, second = runs(scenario, 2)

    def outcome(claim: Claim) -> S:
        late = claim.dag_run_id == first and claim.task_id == "b"
        return S.FAILED if late else S.SKIPPED if claim.dag_run_id == second else S.SUCCESS

    for _ in range(4):
        scenario.turn()
        scenario.work(outcome=outcome)

    assert scenario.states(second) == {"a": "skipped", "b": "none"}
