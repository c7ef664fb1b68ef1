"""depends_on_past and wait_for_downstream, beside several runs, removed instances, and runs without a logical date."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from support.run_actions import push, running
from support.scenario import Scenario, dag

from paceline.authoring import timetable
from paceline.authoring.asset import Asset
from paceline.states import Branched, TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.versions import Versions
from scheduler.store.runs import integrity
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


FREE = {"disable_bundle_versioning": True}


def mapped(length: int, **more: Any) -> SerializedDag:
    each = {"depends_on_past": True, "expand": {"kind": "product", "inputs": [{"literal": length}]}}
    return dag("d", {"first": [], "each": ["first"]}, options={"each": each}, **FREE, **more)


def follow(scenario: Scenario, run: int) -> None:
    with scenario.engine.begin() as connection:
        assert integrity.follow_newest(connection, run, Versions(), default_queue="default") is not None


def finish(scenario: Scenario) -> None:
    for _ in range(15):
        scenario.turn()
        while scenario.work():
            pass


def test_an_instance_that_is_gone_does_not_block_the_next_run(scenario: Scenario) -> None:
    scenario.add(mapped(3))
    first = scenario.trigger("d", run_id="r1", logical_date=day(1))
    claim = running(scenario)
    scenario.add(mapped(2))
    follow(scenario, first)
    push(scenario, claim)
    finish(scenario)
    assert scenario.run_state(first) == "success"

    second = scenario.trigger("d", run_id="r2", logical_date=day(2))
    finish(scenario)

    assert scenario.run_state(second) == "success", scenario.states(second)


def test_a_task_that_was_taken_out_for_one_run_does_not_block_the_next(scenario: Scenario) -> None:
    past = {"b": {"depends_on_past": True}}
    both = dag("d", {"a": [], "b": ["a"]}, options=past, **FREE)
    scenario.add(both)
    first = scenario.trigger("d", run_id="r1", logical_date=day(1))
    claim = running(scenario)
    scenario.add(dag("d", {"a": []}, **FREE))
    follow(scenario, first)
    push(scenario, claim)
    finish(scenario)
    assert (scenario.states(first), scenario.run_state(first)) == ({"a": "success", "b": "removed"}, "success")

    second = scenario.triggered(
        dag("d", {"a": [], "b": ["a"]}, options=past, description="again", **FREE), run_id="r2", logical_date=day(2)
    )
    finish(scenario)

    assert scenario.run_state(second) == "success", scenario.states(second)


def test_a_loop_that_ends_early_does_not_block_the_next_run(scenario: Scenario) -> None:
    """No new version is needed: the iterations that a loop does not need end as removed."""
    loop = {
        "expand": {"kind": "product", "inputs": [{"literal": 4}]}, "mapped_group": "loop", "group": "loop", "loop_gate": "gate",
        "depends_on_past": True,
    }  # fmt: skip
    scenario.add(dag("d", {"work": [], "gate": ["work"]}, options={"work": loop, "gate": {**loop, "branches": True}}))
    states = []
    for number in (1, 2):
        run = scenario.trigger("d", run_id=f"r{number}", logical_date=day(number))

        def outcome(claim: Claim) -> Ending:
            skip = ((Branched.LOOP_STOP,) if claim.map_index == 1 else ()) if claim.task_id == "gate" else None
            return Ending(TaskState.SUCCESS, skip=skip)

        for _ in range(20):
            scenario.turn()
            while scenario.work(outcome=outcome):
                pass
        states.append(scenario.run_state(run))
        print(scenario.states(run), states)
    assert states == ["success", "success"]


A = Asset("a", "s3://a")


def test_a_task_of_an_asset_triggered_run_waits_for_the_run_before(scenario: Scenario) -> None:
    first = scenario.triggered(
        dag("d", {"t": []}, options={"t": {"depends_on_past": True}}, schedule=timetable.WhenUpdated(A).to_spec()), run_id="r1"
    )
    second = scenario.trigger("d", run_id="r2")
    scenario.sql(
        "update dag_run set run_type = 'asset_triggered', logical_date = null, data_interval_start = null, data_interval_end = null"
    )
    for _ in range(5):
        scenario.turn()
        scenario.work(outcome=lambda claim: TaskState.FAILED if claim.dag_run_id == first else TaskState.SUCCESS)

    assert scenario.run_state(first) == "failed"
    assert scenario.states(second) == {"t": "none"}, "the same task of the previous run has failed"
