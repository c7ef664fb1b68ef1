"""Branches, setups and teardowns, fail_fast: which tasks skip, which wait, and how the run ends."""

from collections.abc import Callable
from typing import Any

import pytest
from support.scenario import Scenario, dag

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.worker.claims import Claim, Ending

S = TaskState


def branching(**options: Any) -> SerializedDag:
    """choose decides between left and right; join is downstream of both, deep is downstream of right."""
    edges: dict[str, list[str]] = {
        "choose": [], "left": ["choose"], "right": ["choose"], "deep": ["right"], "join": ["left", "deep"],
    }  # fmt: skip
    return dag("b", edges, rules={"join": "none_failed_min_one_success"}, options={"choose": {"branches": True}}, **options)


def choosing(*skip: str) -> Callable[[Claim], Ending]:
    return lambda claim: Ending(S.SUCCESS, skip=skip if claim.task_id == "choose" else None)


@pytest.mark.parametrize("follow", [True, False])
def test_tasks_that_a_branch_does_not_choose_are_skipped_all_the_way_down(
    make_scenario: Callable[..., Scenario], follow: bool
) -> None:
    scenario = make_scenario(follow=follow)
    scenario.add(branching())
    run = scenario.trigger("b")

    scenario.run_to_end(outcome=choosing("right"))

    assert scenario.states(run) == {
        "choose": "success", "left": "success", "right": "skipped", "deep": "skipped", "join": "success",
    }  # fmt: skip
    reason = scenario.rows("select reason from task_instance where task_id = 'right'")[0][0]
    assert reason == "choose decided to skip it"


@pytest.mark.parametrize("follow", [True, False])
def test_a_short_circuit_skips_regardless_of_trigger_rules(make_scenario: Callable[..., Scenario], follow: bool) -> None:
    scenario = make_scenario(follow=follow)
    scenario.add(branching())
    run = scenario.trigger("b")

    scenario.run_to_end(outcome=choosing("left", "right", "deep", "join"))

    assert set(scenario.states(run).values()) == {"success", "skipped"}
    assert scenario.run_state(run) == "success"


def test_a_cleared_task_below_a_branch_is_skipped_again_by_the_stored_decision(scenario: Scenario) -> None:
    edges: dict[str, list[str]] = {"other": [], "choose": [], "below": ["choose", "other"]}
    run = scenario.start(dag("b", edges, options={"choose": {"branches": True}}))
    for message in scenario.messages():
        claim = scenario.claim(message)
        assert claim
        if claim.task_id == "choose":
            scenario.follower.report(claim, Ending(S.SUCCESS, skip=("below",)))
        else:
            other = claim
    assert scenario.states(run)["below"] == "skipped"

    # As `clear` leaves it. The other upstream task ends now, and its worker must not schedule a task that the branch skipped.
    scenario.sql("update task_instance set state = null, reason = 'cleared', ended_at = null where task_id = 'below'")
    scenario.follower.report(other, Ending(S.SUCCESS))
    assert scenario.states(run)["below"] == "none"
    scenario.run_to_end()

    assert scenario.states(run)["below"] == "skipped"


def with_teardown(**options: Any) -> SerializedDag:
    """up -> work -> more -> down, where down tears up down; after comes last."""
    edges: dict[str, list[str]] = {
        "up": [], "work": ["up"], "more": ["work"], "down": ["up", "more"], "after": ["more"],
    }  # fmt: skip
    own = {
        "up": {"is_setup": True},
        "work": {"setups": ("up",)},
        "more": {"setups": ("up",)},
        "down": {
            "is_teardown": True, "trigger_rule": "all_done_setup_success", "setups": ("up",), "scope": ("work", "more"),
        } | options.pop("down", {}),
    }  # fmt: skip
    return dag("s", edges, options=own, **options)


def ends(**states: S) -> Callable[[Claim], S]:
    return lambda claim: states.get(claim.task_id, S.SUCCESS)


@pytest.mark.parametrize(
    ("ending", "expected", "run_state"),
    [
        ({}, {"work": "success", "more": "success", "down": "success", "after": "success"}, "success"),
        (
            {"work": S.FAILED},
            {"work": "failed", "more": "upstream_failed", "down": "success", "after": "upstream_failed"},
            "failed",
        ),
        (
            {"up": S.FAILED},
            {"work": "upstream_failed", "more": "upstream_failed", "down": "upstream_failed", "after": "upstream_failed"},
            "failed",
        ),
        ({"up": S.SKIPPED}, {"work": "skipped", "more": "skipped", "down": "skipped", "after": "skipped"}, "success"),
        ({"down": S.FAILED}, {"work": "success", "more": "success", "down": "failed", "after": "success"}, "success"),
    ],
)
def test_teardowns_run_when_their_setup_succeeded_and_do_not_decide_the_run(
    scenario: Scenario, ending: dict[str, S], expected: dict[str, str], run_state: str
) -> None:
    scenario.add(with_teardown())
    run = scenario.trigger("s")

    scenario.run_to_end(outcome=ends(**ending), shuffle=True)

    states = scenario.states(run)
    assert {name: states[name] for name in expected} == expected
    assert scenario.run_state(run) == run_state


def test_a_task_that_would_run_anyway_still_needs_a_setup_further_up_unless_its_rule_is_always(scenario: Scenario) -> None:
    edges: dict[str, list[str]] = {"up": [], "work": ["up"], "late": ["work"], "any": ["work"]}
    own = {
        "up": {"is_setup": True},
        "work": {"setups": ("up",)},
        "late": {"setups": ("up",), "trigger_rule": "all_done"},
        "any": {"setups": ("up",), "trigger_rule": "always"},
    }
    run = scenario.triggered(dag("s", edges, options=own))

    scenario.run_to_end(outcome=ends(up=S.FAILED))

    assert scenario.states(run) == {"up": "failed", "work": "upstream_failed", "late": "upstream_failed", "any": "success"}


@pytest.mark.parametrize("follow", [True, False])
def test_a_setup_directly_above_counts_for_the_trigger_rule(make_scenario: Callable[..., Scenario], follow: bool) -> None:
    scenario = make_scenario(follow=follow)
    edges: dict[str, list[str]] = {"up": [], "work": ["up"], "late": ["work"]}
    own = {"up": {"is_setup": True}, "work": {"setups": ("up",), "trigger_rule": "all_done"}, "late": {"setups": ("up",)}}
    run = scenario.triggered(dag("s", edges, options=own))

    scenario.run_to_end(outcome=ends(up=S.FAILED))

    assert scenario.states(run) == {"up": "failed", "work": "success", "late": "upstream_failed"}


def test_fail_fast_ends_everything_but_teardowns_at_the_first_failure(scenario: Scenario) -> None:
    edges: dict[str, list[str]] = {"up": [], "bad": ["up"], "slow": ["up"], "next": ["slow"], "down": ["up", "bad", "next"]}
    own = {
        "up": {"is_setup": True},
        "down": {"is_teardown": True, "trigger_rule": "all_done_setup_success", "setups": ("up",), "scope": ("bad", "next")},
    }
    run = scenario.start(dag("f", edges, options=own, fail_fast=True))
    scenario.work(outcome=lambda claim: S.SUCCESS)
    scenario.turn()
    claims = {claim.task_id: claim for message in scenario.messages() if (claim := scenario.claim(message))}

    scenario.follower.report(claims["bad"], Ending(S.FAILED))
    scenario.turn()
    states = scenario.states(run)
    assert (states["slow"], states["next"], states["down"]) == ("shutdown", "skipped", "none")
    # Its worker stops it and sets the requested state.
    assert not scenario.follower.report(claims["slow"], Ending(S.SUCCESS)).is_stored
    assert scenario.follower.end_as_requested(claims["slow"])
    scenario.run_to_end()

    states = scenario.states(run)
    assert (states["slow"], states["next"], states["down"]) == ("failed", "skipped", "success")
    assert scenario.run_state(run) == "failed"
