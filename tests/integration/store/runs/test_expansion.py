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


def group(**options: Any) -> SerializedDag:
    """A mapped group of x, y (after x) and z (after both), with end after the group."""
    own = product({"literal": 3}) | {"mapped_group": "g"}
    edges: dict[str, list[str]] = {"x": [], "y": ["x"], "z": ["x", "y"], "end": ["z"]}
    return dag("g", edges, options=dict.fromkeys("xyz", own), **options)


def all_end(state: S) -> Callable[[Claim], S]:
    return lambda claim: state


def fails(task_id: str, map_index: int) -> Callable[[Claim], Ending]:
    """One instance fails; the others succeed and return a list of three."""
    one = (task_id, map_index)
    return lambda claim: Ending(S.FAILED if (claim.task_id, claim.map_index) == one else S.SUCCESS, result="[1, 2, 3]")


MAPPED_TWICE = dag("m", {"a": [], "b": ["a"]}, options={"a": product({"literal": 4}), "b": product(of("a"))})
BELOW = dag("m", {"bad": [], "a": ["bad"], "b": ["a"]}, options={"b": product(of("a")) | {"trigger_rule": "one_done"}})
#: The DAG, the ends of its tasks, and the final states of its task instances. core.max_map_length is 5.
ENDS: dict[str, tuple[SerializedDag, Callable[[Claim], S | Ending], dict[str, str]]] = {
    "an instance for each entry": (
        mapped(), returns(a="[10, 20, 30]"), dict.fromkeys(["a", "b[0]", "b[1]", "b[2]", "c"], "success")),
    **{f"{value} has no entry": (mapped(), returns(a=value), {"a": "success", "b": "skipped", "c": "skipped"})
       for value in ("[]", "{}")},
    **{f"{value} is no list of at most 5 entries": (
        mapped(), returns(**({} if value is None else {"a": value})),
        {"a": "success", "b": "upstream_failed", "c": "upstream_failed"})
       for value in (None, '"text"', "[1,2,3,4,5,6]")},
    "the source fails": (mapped(), all_end(S.FAILED), {"a": "failed", "b": "upstream_failed", "c": "upstream_failed"}),
    "above the source a task fails": (BELOW, all_end(S.FAILED), {"bad": "failed", "a": "upstream_failed", "b": "upstream_failed"}),
    **{f"the source is {ending} and the rule is {rule}": (
        mapped(b={"trigger_rule": rule}), all_end(S(ending)), {"a": ending, "b": state, "c": state})
       for rule, ending, state in (
           ("none_failed", "skipped", "skipped"),
           ("all_done", "skipped", "skipped"),
           ("all_done", "failed", "upstream_failed"),
           ("one_failed", "failed", "upstream_failed"),
           ("one_done", "failed", "upstream_failed"),
       )},
    "one instance fails": (
        mapped(), fails("b", 1),
        {"a": "success", "b[0]": "success", "b[1]": "failed", "b[2]": "success", "c": "upstream_failed"}),
    "an instance for each that returned something": (
        MAPPED_TWICE, lambda claim: Ending(S.SUCCESS, result=None if claim.map_index == 2 else "1"),
        dict.fromkeys(["a[0]", "a[1]", "a[2]", "a[3]", "b[0]", "b[1]", "b[2]"], "success")),
    "no instance returned anything": (
        MAPPED_TWICE, all_end(S.SUCCESS), dict.fromkeys(["a[0]", "a[1]", "a[2]", "a[3]"], "success") | {"b": "skipped"}),
    "a failure stays inside its instance of a group": (
        group(), fails("y", 0),
        dict.fromkeys(["x[0]", "x[1]", "x[2]", "y[1]", "y[2]", "z[1]", "z[2]"], "success")
        | {"y[0]": "failed", "z[0]": "upstream_failed", "end": "upstream_failed"}),
}  # fmt: skip
#: Parts of the reasons of `b`.
REASONS = {
    "[] has no entry": "nothing to map over",
    "None is no list of at most 5 entries": "a returned no list or dict",
    '"text" is no list of at most 5 entries': "a returned no list or dict",
    "[1,2,3,4,5,6] is no list of at most 5 entries": "would have 6 instances; core.max_map_length allows 5",
}


@pytest.mark.parametrize("case", ENDS)
def test_a_mapped_task_ends(make_scenario: Callable[..., Scenario], case: str) -> None:
    new, outcome, expected = ENDS[case]
    scenario = make_scenario(core={"max_map_length": 5})
    run = scenario.triggered(new)

    scenario.run_to_end(outcome=outcome, shuffle=True)

    assert scenario.states(run) == expected
    assert scenario.run_state(run) == ("failed" if {"failed", "upstream_failed"} & set(expected.values()) else "success")
    if case in REASONS:
        assert REASONS[case] in scenario.rows("select reason from task_instance where task_id = 'b'")[0][0]


def test_nothing_is_expanded_before_its_source_has_ended(scenario: Scenario) -> None:
    run = scenario.start(mapped())

    assert scenario.states(run) == {"a": "queued", "b": "none", "c": "none"}


def test_literal_lists_expand_before_anything_runs_and_multiply(scenario: Scenario) -> None:
    run = scenario.start(dag("m", {"a": [], "b": ["a"]}, options={"b": product({"literal": 2}, {"literal": 3})}))

    assert [name for name in scenario.states(run) if name != "a"] == [f"b[{n}]" for n in range(6)]


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
