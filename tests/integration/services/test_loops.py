"""Loops on the engine: one iteration after the other, until the gate ends the loop."""

import pytest
from support.scenario import Scenario, dag

from paceline.states import Branched, TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.worker.claims import Claim, Ending

IN_LOOP = {
    "expand": {"kind": "product", "inputs": [{"literal": 4}]}, "mapped_group": "loop", "group": "loop", "loop_gate": "gate",
}  # fmt: skip


def looping() -> SerializedDag:
    return dag(
        "d",
        {"before": [], "first": ["before"], "last": ["first"], "gate": ["last"], "after": ["gate"]},
        options={"first": IN_LOOP, "last": IN_LOOP, "gate": {**IN_LOOP, "branches": True}},
    )


@pytest.mark.parametrize("stop_at", [0, 2])
def test_iterations_run_one_after_the_other_until_the_gate_stops(scenario: Scenario, stop_at: int) -> None:
    scenario.add(looping())
    run = scenario.trigger("d")
    order: list[tuple[str, int]] = []

    def outcome(claim: Claim) -> Ending:
        order.append((claim.task_id, claim.map_index))
        skip = ((Branched.LOOP_STOP,) if claim.map_index == stop_at else ()) if claim.task_id == "gate" else None
        return Ending(TaskState.SUCCESS, skip=skip)

    scenario.run_to_end(outcome=outcome)

    turns = [(name, at) for at in range(stop_at + 1) for name in ("first", "last", "gate")]
    assert order == [("before", -1), *turns, ("after", -1)]
    assert scenario.run_state(run) == "success"
    states = scenario.states(run)
    assert {state for name, state in states.items() if name.endswith("[3]")} == {"removed"}


def test_a_failure_ends_the_loop_and_the_run(scenario: Scenario) -> None:
    scenario.add(looping())
    run = scenario.trigger("d")

    scenario.run_to_end(outcome=lambda claim: TaskState.FAILED if claim.map_index == 1 else Ending(TaskState.SUCCESS, skip=()))

    states = scenario.states(run)
    assert scenario.run_state(run) == "failed" and states["after"] == "upstream_failed"
    assert (states["gate[0]"], states["first[1]"], states["first[3]"]) == ("success", "failed", "upstream_failed")
