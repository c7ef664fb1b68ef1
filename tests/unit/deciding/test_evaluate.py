"""Evaluating a whole run in memory: a fixpoint in one pass, reasons of waiting tasks, the end of a run."""

from typing import Any

import pytest
from support.scenario import dag

from paceline.states import Branched, RunState
from paceline.states import TaskState as S
from scheduler.deciding.evaluate import NO_FACTS, Evaluation, Facts, evaluate, run_state
from scheduler.serialized.dag import SerializedDag

SETUP = {"s": {"is_setup": True}, "work": {"setups": ("s",)}, "last": {"setups": ("s",)}}


def states(plan: SerializedDag, **given: S) -> dict[int, dict[int, S]]:
    """Undecided, but for those given by task_id."""
    return {no: {-1: given.get(task.task_id, S.NONE)} for no, task in enumerate(plan.tasks)}


def decided(plan: SerializedDag, found: Evaluation) -> dict[str, S]:
    return {plan.tasks[decision.task_no].task_id: decision.state for decision in found.decisions}


def below_setup(rule: str) -> SerializedDag:
    """`last`, whose setup `s` is further up."""
    return dag("d", {"s": [], "work": [], "last": ["work"]}, options=SETUP, rules={"last": rule})


CHAIN = dag("d", {"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}, rules={"d": "all_done"})
BRANCH = dag("d", {"a": [], "b": ["a"]}, rules={"b": "always"}, options={"a": {"branches": True}})
JOIN = dag("d", {"a": [], "b": [], "c": ["a", "b"]})
#: However far away the failure is. Airflow decides one level in each pass, so there the nearer skip counts.
FAR = dag("d", {"failed": [], "skipped": [], "between": ["failed"], "last": ["skipped", "between"]})


@pytest.mark.parametrize(
    ("plan", "given", "facts", "expected"),
    [
        # A skip travels to the end in one pass, and a failure decides while siblings run.
        (CHAIN, {"a": S.SKIPPED}, NO_FACTS, {"b": S.SKIPPED, "c": S.SKIPPED, "d": S.SCHEDULED}),
        (JOIN, {"a": S.RUNNING, "b": S.FAILED}, NO_FACTS, {"c": S.UPSTREAM_FAILED}),
        (FAR, {"failed": S.FAILED, "skipped": S.SKIPPED}, NO_FACTS, {"between": S.UPSTREAM_FAILED, "last": S.UPSTREAM_FAILED}),
        # A stored decision comes before the trigger rule.
        (BRANCH, {"a": S.SUCCESS}, Facts(branched=(Branched(task_no=0, skip=frozenset({"b", "gone"})),)), {"b": S.SKIPPED}),
        # The rule skips or fails the task while its setup still runs, but cannot start it.
        (below_setup("all_success"), {"s": S.RUNNING, "work": S.FAILED}, NO_FACTS, {"last": S.UPSTREAM_FAILED}),
        (below_setup("all_success"), {"s": S.RUNNING, "work": S.SKIPPED}, NO_FACTS, {"last": S.SKIPPED}),
        (below_setup("none_skipped"), {"s": S.RUNNING, "work": S.SKIPPED}, NO_FACTS, {"last": S.SKIPPED}),
        (below_setup("all_done"), {"s": S.RUNNING, "work": S.FAILED}, NO_FACTS, {}),
        (below_setup("all_success"), {"s": S.RUNNING, "work": S.SUCCESS}, NO_FACTS, {}),
        # The setup decides with any rule except "always".
        (below_setup("one_success"), {"s": S.FAILED, "work": S.SUCCESS}, NO_FACTS, {"last": S.UPSTREAM_FAILED}),
        (below_setup("all_done"), {"s": S.SKIPPED, "work": S.SUCCESS}, NO_FACTS, {"last": S.SKIPPED}),
        (below_setup("all_failed"), {"s": S.SUCCESS, "work": S.FAILED}, NO_FACTS, {"last": S.SCHEDULED}),
        (below_setup("always"), {"s": S.FAILED, "work": S.RUNNING}, NO_FACTS, {"last": S.SCHEDULED}),
    ],
)
def test_what_one_pass_decides(plan: SerializedDag, given: dict[str, S], facts: Facts, expected: dict[str, S]) -> None:
    assert decided(plan, evaluate(plan, states(plan, **given), facts)) == expected


def test_a_task_that_is_not_in_this_run_is_not_waited_for() -> None:
    without = {no: one for no, one in states(JOIN, a=S.SUCCESS).items() if no != JOIN.number["b"]}

    assert decided(JOIN, evaluate(JOIN, without)) == {"c": S.SCHEDULED}


def test_a_waiting_task_has_a_reason_and_the_run_before_holds_back_a_task_but_not_a_failure() -> None:
    past = Facts(past={2: "the run before"})

    assert evaluate(JOIN, states(JOIN, a=S.RUNNING, b=S.SUCCESS)).waiting == {(2, -1): "1 of 2 upstream tasks has not ended"}
    assert evaluate(JOIN, states(JOIN, a=S.SUCCESS, b=S.SUCCESS), past).waiting == {(2, -1): "the run before"}
    assert decided(JOIN, evaluate(JOIN, states(JOIN, a=S.FAILED, b=S.SUCCESS), past)) == {"c": S.UPSTREAM_FAILED}


def test_a_mapped_branch_decides_for_its_own_index_in_its_group_and_outside_every_instance_must_choose_a_task() -> None:
    own: dict[str, Any] = {"expand": {"kind": "product", "inputs": [{"literal": 2}]}, "mapped_group": "g"}
    branch = own | {"branches": True}
    skips_b = Facts(branched=(Branched(task_no=0, map_index=1, skip=frozenset({"b"})),))
    in_group = dag("d", {"a": [], "b": ["a"]}, options={"a": branch, "b": own})
    outside = dag("d", {"a": [], "b": ["a"], "both": ["a"]}, options={"a": branch | {"mapped_group": None}})

    found = evaluate(in_group, {0: {0: S.SUCCESS, 1: S.SUCCESS}, 1: {0: S.NONE, 1: S.NONE}}, skips_b)

    assert [(decision.map_index, decision.state) for decision in found.decisions] == [(0, S.SCHEDULED), (1, S.SKIPPED)]
    found = evaluate(outside, {0: {0: S.SUCCESS, 1: S.SUCCESS}, 1: {-1: S.NONE}, 2: {-1: S.NONE}}, skips_b)
    assert decided(outside, found) == {"both": S.SCHEDULED, "b": S.SKIPPED}


def test_a_mapped_task_is_expanded_once_it_may_run_and_its_sources_have_ended() -> None:
    spec = {"expand": {"kind": "product", "inputs": [{"task": "a", "key": "return_value"}]}}
    plan = dag("d", {"a": [], "other": [], "b": ["a", "other"]}, options={"b": spec}, rules={"b": "one_success"})

    assert evaluate(plan, states(plan, a=S.SUCCESS, other=S.RUNNING)).expand == [plan.number["b"]]
    assert evaluate(plan, states(plan, a=S.RUNNING, other=S.SUCCESS)).expand == [], "how many is not known"
    plan = dag("d", {"a": [], "other": [], "b": ["a", "other"]}, options={"b": spec})
    assert evaluate(plan, states(plan, a=S.SUCCESS, other=S.RUNNING)).expand == [], "if it has none, a failure must not be hidden"
    assert evaluate(plan, states(plan, a=S.SUCCESS, other=S.SUCCESS)).expand == [plan.number["b"]]


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("source", [S.NONE, S.UPSTREAM_FAILED])
def test_a_task_whose_mapped_source_failed_is_upstream_failed_even_if_its_rule_would_skip_it(group: str | None, source: S) -> None:
    """Whether the source is decided in the same pass or was before."""
    own: dict[str, Any] = {
        "expand": {"kind": "product", "inputs": [{"task": "source", "key": "return_value"}]}, "mapped_group": group
    }  # fmt: skip
    plan = dag(
        "d",
        {"above": [], "source": ["above"], "mapped": ["source", "above"]},
        rules={"mapped": "all_skipped"},
        options={"mapped": own},
    )

    found = decided(plan, evaluate(plan, states(plan, above=S.FAILED, source=source)))

    assert found["mapped"] == S.UPSTREAM_FAILED


@pytest.mark.parametrize(
    ("rule", "expand", "decision"), [("all_success", [2], {}), ("one_failed", [2], {}), ("one_success", [], {})]
)
def test_a_task_of_a_mapped_group_is_expanded_before_the_instances_above_it_have_ended(
    rule: str, expand: list[int], decision: dict[str, S]
) -> None:
    own: dict[str, Any] = {
        "expand": {"kind": "product", "inputs": [{"task": "sizes", "key": "return_value"}]}, "mapped_group": "g"
    }  # fmt: skip
    plan = dag("d", {"sizes": [], "a": ["sizes"], "b": ["a"]}, options={"a": own, "b": own}, rules={"b": rule})
    given = {0: {-1: S.SUCCESS}, 1: {0: S.RUNNING, 1: S.FAILED}, 2: {-1: S.NONE}}

    found = evaluate(plan, given)

    assert (found.expand, decided(plan, found)) == (expand, decision)


@pytest.mark.parametrize(("length", "expand"), [(0, []), (2, [1])])
def test_a_list_in_the_file_is_expanded_at_once_unless_it_is_empty(length: int, expand: list[int]) -> None:
    spec = {"expand": {"kind": "product", "inputs": [{"literal": length}]}}
    plan = dag("d", {"a": [], "b": ["a"]}, options={"b": spec})

    assert evaluate(plan, states(plan, a=S.RUNNING)).expand == expand
    assert evaluate(plan, states(plan, a=S.SUCCESS)).expand == [1]


@pytest.mark.parametrize(
    ("rules", "follows"),
    [
        ({}, True),
        ({"work": "all_done"}, False),  # it may succeed below a failed setup
        ({"last": "all_done"}, False),  # the setup counts although the rule does not count it
        ({"last": "always"}, True),  # the setup has none
    ],
)
def test_a_worker_decides_below_a_setup_where_the_tasks_between_vouch_for_it(rules: dict[str, str], follows: bool) -> None:
    plan = dag("d", {"s": [], "work": ["s"], "last": ["work"]}, options=SETUP, rules=rules)

    assert (plan.number["last"] in plan.followed) is follows


@pytest.mark.parametrize(
    ("given", "ended"),
    [
        ({"a": S.SUCCESS, "b": S.RUNNING, "c": S.NONE}, None),
        ({"a": S.SUCCESS, "b": S.SHUTDOWN, "c": S.FAILED}, None),
        ({"a": S.SUCCESS, "b": S.FAILED, "c": S.SUCCESS}, RunState.SUCCESS),  # a failure that is no leaf
        ({"a": S.SUCCESS, "b": S.SUCCESS, "c": S.UPSTREAM_FAILED}, RunState.FAILED),
        ({"a": S.SKIPPED, "b": S.SKIPPED, "c": S.SKIPPED}, RunState.SUCCESS),
        ({"a": S.REMOVED, "b": S.REMOVED, "c": S.REMOVED}, RunState.SUCCESS),
    ],
)
def test_leaf_tasks_decide_how_a_run_ends(given: dict[str, S], ended: RunState | None) -> None:
    plan = dag("d", {"a": [], "b": ["a"], "c": ["b"]}, rules={"c": "all_done"})

    assert run_state(plan, states(plan, **given)) == ended


def test_a_run_in_which_nothing_can_be_decided_has_failed_unless_it_waits_for_an_earlier_run() -> None:
    plan = dag("d", {"a": [], "b": ["a"]}, options={"a": {"setups": ("b",)}})  # each waits for the other

    assert run_state(plan, states(plan)) is RunState.FAILED
    assert run_state(plan, states(plan), waiting_for_past=True) is None
    assert run_state(dag("d", {"a": [], "b": ["a"]}), states(plan)) is None  # here a can go on


def test_a_reason_names_the_tasks_that_are_the_reason_at_most_five_of_them() -> None:
    names = [f"a{number}" for number in range(8)]
    each = {"expand": {"kind": "product", "inputs": [{"literal": 3}]}}
    edges: dict[str, list[str]] = {**{name: [] for name in names}, "each": [], "one": ["a0", "a1"], "all": names, "of": ["each"]}
    plan = dag("d", edges, options={"each": each})
    given = states(plan, **(dict.fromkeys(names, S.FAILED) | {"a0": S.SUCCESS}))
    given[plan.number["each"]] = {0: S.SKIPPED, 1: S.SUCCESS, 2: S.SKIPPED}

    reasons = {plan.tasks[decision.task_no].task_id: decision.reason for decision in evaluate(plan, given).decisions}

    assert reasons == {
        "one": "1 upstream task failed: a1",
        "all": "7 upstream tasks failed: a1, a2, a3, a4, a5 and 2 more",
        "of": "2 upstream tasks were skipped: each[0], each[2]",
    }
