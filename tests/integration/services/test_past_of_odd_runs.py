"""depends_on_past beside removed instances, which are no predecessors, and in runs without a logical date."""

from datetime import UTC, datetime
from typing import Any

from support.run_actions import push, running
from support.scenario import Scenario, dag

from paceline.authoring import timetable
from paceline.authoring.asset import Asset
from paceline.states import Branched, TaskState
from paceline.states import TaskState as S
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.versions import Versions
from scheduler.store.runs import integrity
from scheduler.store.worker.claims import Claim, Ending

FREE = {"disable_bundle_versioning": True}


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


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
        scenario.work(outcome=lambda claim: S.FAILED if claim.dag_run_id == first else S.SUCCESS)

    assert scenario.run_state(first) == "failed"
    assert scenario.states(second) == {"t": "none"}, "the same task of the previous run has failed"
