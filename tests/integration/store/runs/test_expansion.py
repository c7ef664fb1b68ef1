"""Mapped tasks and groups in the engine: the number of instances, the time of the expansion, and the final states."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.scenario import Scenario, dag, of, product

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.worker.claims import Claim, Ending

S = TaskState


def returns(**results: str) -> Callable[[Claim], Ending]:
    """Every task succeeds; those named return this JSON."""
    return lambda claim: Ending(S.SUCCESS, result=results.get(claim.task_id))


def mapped(**options: Any) -> SerializedDag:
    """a returns a list, b is mapped over it, c comes after all of b."""
    return dag("m", {"a": [], "b": ["a"], "c": ["b"]}, options={"b": product(of("a")) | options.pop("b", {})}, **options)


def test_a_mapped_task_becomes_one_instance_for_each_entry_of_a_list(scenario: Scenario) -> None:
    scenario.add(mapped())
    run = scenario.trigger("m")
    scenario.turn()
    assert scenario.states(run) == {"a": "queued", "b": "none", "c": "none"}

    scenario.run_to_end(outcome=returns(a="[10, 20, 30]"))

    assert scenario.states(run) == dict.fromkeys(["a", "b[0]", "b[1]", "b[2]", "c"], "success")
    assert scenario.run_state(run) == "success"


def test_literal_lists_expand_before_anything_runs_and_multiply(scenario: Scenario) -> None:
    run = scenario.start(dag("m", {"a": [], "b": ["a"]}, options={"b": product({"literal": 2}, {"literal": 3})}))

    assert [name for name in scenario.states(run) if name != "a"] == [f"b[{n}]" for n in range(6)]


@pytest.mark.parametrize(
    ("result", "b", "c", "why"),
    [
        ("[]", "skipped", "skipped", "nothing to map over"),
        ("{}", "skipped", "skipped", "nothing to map over"),
        (None, "upstream_failed", "upstream_failed", "a returned no list or dict"),
        ('"text"', "upstream_failed", "upstream_failed", "a returned no list or dict"),
        ("[1,2,3,4,5,6]", "upstream_failed", "upstream_failed", "would have 6 instances; core.max_map_length allows 5"),
    ],
)
def test_a_value_that_cannot_be_mapped_over_is_named(
    make_scenario: Callable[..., Scenario], result: str | None, b: str, c: str, why: str
) -> None:
    scenario = make_scenario(core={"max_map_length": 5})
    scenario.add(mapped())
    run = scenario.trigger("m")

    scenario.run_to_end(outcome=lambda claim: Ending(S.SUCCESS, result=result))

    assert scenario.states(run) == {"a": "success", "b": b, "c": c}
    assert why in scenario.rows("select reason from task_instance where task_id = 'b'")[0][0]


def test_a_failed_source_decides_before_anything_is_expanded(scenario: Scenario) -> None:
    scenario.add(mapped())
    run = scenario.trigger("m")

    scenario.run_to_end(outcome=lambda claim: S.FAILED)

    assert scenario.states(run) == {"a": "failed", "b": "upstream_failed", "c": "upstream_failed"}


@pytest.mark.parametrize("of_group", [False, True])
@pytest.mark.parametrize("ref", [{"literal": 0}, of("list")], ids=["literal", "result"])
def test_nothing_to_map_over_hides_no_failure(scenario: Scenario, ref: dict[str, Any], of_group: bool) -> None:
    own = product(ref) | ({"mapped_group": "g"} if of_group else {})
    edges: dict[str, list[str]] = {"bad": [], "list": [], "b": ["bad", "list"], "c": ["b"]}
    run = scenario.triggered(dag("m", edges, options={"b": own, "c": own if of_group else {}}))

    scenario.turn()
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    assert scenario.follower.report(claims["list"], Ending(S.SUCCESS, result="[]")).is_stored
    scenario.turn()
    assert scenario.follower.report(claims["bad"], Ending(S.FAILED)).is_stored
    scenario.run_to_end()

    assert scenario.states(run) == {"bad": "failed", "list": "success", "b": "upstream_failed", "c": "upstream_failed"}
    assert scenario.run_state(run) == "failed"


@pytest.mark.parametrize(
    ("rule", "outcome", "state"),
    [
        ("none_failed", S.SKIPPED, "skipped"),
        ("all_done", S.SKIPPED, "skipped"),
        ("all_done", S.FAILED, "upstream_failed"),
        ("one_failed", S.FAILED, "upstream_failed"),
        ("one_done", S.FAILED, "upstream_failed"),
    ],
)
def test_a_task_mapped_over_a_result_needs_it_with_any_trigger_rule(
    scenario: Scenario, rule: str, outcome: TaskState, state: str
) -> None:
    scenario.add(mapped(b={"trigger_rule": rule}))
    run = scenario.trigger("m")

    scenario.run_to_end(outcome=lambda claim: outcome)

    assert scenario.states(run) == {"a": outcome.value, "b": state, "c": state}


def test_below_a_source_that_could_not_run_it_is_upstream_failed_and_not_skipped(scenario: Scenario) -> None:
    edges: dict[str, list[str]] = {"bad": [], "a": ["bad"], "b": ["a"]}
    run = scenario.triggered(dag("m", edges, options={"b": product(of("a")) | {"trigger_rule": "one_done"}}))

    scenario.run_to_end(outcome=lambda claim: S.FAILED)

    assert scenario.states(run) == {"bad": "failed", "a": "upstream_failed", "b": "upstream_failed"}
    assert scenario.run_state(run) == "failed"


def test_one_failed_instance_fails_the_tasks_after_all_instances(scenario: Scenario) -> None:
    scenario.add(mapped())
    run = scenario.trigger("m")

    scenario.run_to_end(
        outcome=lambda claim: S.FAILED if claim.map_index == 1 else Ending(S.SUCCESS, result="[1,2,3]"), shuffle=True
    )

    assert scenario.states(run) == {
        "a": "success", "b[0]": "success", "b[1]": "failed", "b[2]": "success", "c": "upstream_failed",
    }  # fmt: skip


def test_a_task_mapped_over_a_mapped_one_has_an_instance_for_each_that_returned_something(scenario: Scenario) -> None:
    run = scenario.triggered(dag("m", {"a": [], "b": ["a"]}, options={"a": product({"literal": 4}), "b": product(of("a"))}))

    scenario.run_to_end(outcome=lambda claim: Ending(S.SUCCESS, result=None if claim.map_index == 2 else "1"))

    assert [name for name in scenario.states(run) if name.startswith("b")] == ["b[0]", "b[1]", "b[2]"]


def test_a_mapped_task_that_returned_nothing_leaves_nothing_to_map_over(scenario: Scenario) -> None:
    run = scenario.triggered(dag("m", {"a": [], "b": ["a"]}, options={"a": product({"literal": 2}), "b": product(of("a"))}))

    scenario.run_to_end()

    assert scenario.states(run) == {"a[0]": "success", "a[1]": "success", "b": "skipped"}


def group(**options: Any) -> SerializedDag:
    """A mapped group of x, y (after x) and z (after both), with end after the group."""
    own = product({"literal": 3}) | {"mapped_group": "g"}
    edges: dict[str, list[str]] = {"x": [], "y": ["x"], "z": ["x", "y"], "end": ["z"]}
    return dag("g", edges, options=dict.fromkeys("xyz", own), **options)


@pytest.mark.parametrize("follow", [True, False])
def test_instances_of_a_mapped_group_go_down_on_their_own(make_scenario: Callable[..., Scenario], follow: bool) -> None:
    scenario = make_scenario(follow=follow)
    scenario.add(group())
    run = scenario.trigger("g")
    scenario.turn()
    taken = [scenario.claim(message) for message in scenario.messages()]
    first = next(claim for claim in taken if claim and claim.map_index == 1)

    # Only instance 1 of x ends: its y may run, and no other.
    scenario.follower.report(first, Ending(S.SUCCESS))
    scenario.turn()

    states = scenario.states(run)
    assert (states["y[0]"], states["y[1]"], states["y[2]"]) == ("none", "queued", "none")


def test_a_failure_stays_inside_its_instance_of_the_group(scenario: Scenario) -> None:
    scenario.add(group())
    run = scenario.trigger("g")

    scenario.run_to_end(outcome=lambda claim: S.FAILED if (claim.task_id, claim.map_index) == ("y", 0) else S.SUCCESS, shuffle=True)

    states = scenario.states(run)
    assert [states[f"z[{n}]"] for n in range(3)] == ["upstream_failed", "success", "success"]
    assert states["end"] == "upstream_failed"


def test_workers_queue_the_chains_inside_a_group_themselves(scenario: Scenario) -> None:
    scenario.add(group())
    run = scenario.trigger("g")

    scenario.run_to_end()

    queued_by = scenario.rows(
        "select task_id, count(*) from task_instance where dag_run_id = %s and queued_by = %s group by 1 order by 1",
        run, scenario.worker_id,
    )  # fmt: skip
    assert dict(queued_by) == {"y": 3, "z": 3, "end": 1}


def test_three_schedulers_racing_expand_10000_exactly_once(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=3)
    run = scenario.triggered(dag("m", {"a": [], "b": ["a"]}, options={"b": product({"literal": 10_000})}))

    def turns(number: int) -> None:
        for _ in range(5):
            for timer in scenario.schedulers[number].timers.values():
                timer.due_at = 0.0
            scenario.schedulers[number].run_once()

    racing = [threading.Thread(target=turns, args=(number,)) for number in range(3)]
    for one in racing:
        one.start()
    for one in racing:
        one.join()

    rows = scenario.rows(
        "select count(*), count(distinct map_index), min(map_index), max(map_index) from task_instance"
        " where dag_run_id = %s and task_id = 'b'",
        run,
    )
    assert rows == [(10_000, 10_000, 0, 9_999)]
