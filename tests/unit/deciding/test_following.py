"""The pure part of fast-follow: which tasks a result settles, the successor, and the wakeups."""

from datetime import UTC, datetime
from typing import Any

import pytest
from support.scenario import dag

from paceline.states import Decision, TaskState
from scheduler.deciding.following import choose_successor, plan_of, undecided
from scheduler.serialized.dag import SerializedDag
from scheduler.store.worker.claims import Claim, Moved, Reported
from workers.task.follow import wakeup_tokens

S = TaskState
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def claim(plan: SerializedDag, task_id: str, pool_slots: int = 1, map_index: int = -1) -> Claim:
    return Claim(
        id=1, dispatch_id="d", task_id=task_id, map_index=map_index, task_no=plan.number[task_id], try_number=1, max_tries=0,
        queue="default", pool="default_pool", pool_slots=pool_slots, priority_weight=1, started_at=NOW, resume=None, dag_run_id=7,
        dag_id="d",
        run_id="r", run_type="manual", logical_date=NOW, data_interval_start=NOW, data_interval_end=NOW, run_after=NOW,
        run_started_at=NOW, conf={}, version_id=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "ending", "settled"),
    [
        ("all_success", S.SUCCESS, None),
        ("all_success", S.FAILED, S.UPSTREAM_FAILED),
        ("all_success", S.SKIPPED, S.SKIPPED),
        ("one_success", S.SUCCESS, S.SCHEDULED),
        ("one_failed", S.FAILED, S.SCHEDULED),
        ("all_done", S.FAILED, None),
        ("always", S.SUCCESS, S.SCHEDULED),
    ],
)
def test_one_result_settles_a_join_only_if_nothing_else_can_change_it(rule: str, ending: S, settled: S | None) -> None:
    plan = dag("d", {"a": [], "b": [], "join": ["a", "b"]}, rules={"join": rule})

    below = plan_of(plan, claim(plan, "a"), ending)

    assert [one.state for one in below.settled] == ([settled] if settled else [])
    assert below.joins == ([] if settled else [plan.number["join"]])


@pytest.mark.parametrize(
    ("moved", "left"),
    [
        ([], ["first", "second"]),
        (["b"], ["second"]),
        (["c"], []),
        (["first"], ["second"]),
        (["first", "second"], []),
        (["e"], ["first", "second"]),
    ],
)
def test_a_report_examines_joins_that_no_later_report_can_decide(moved: list[str], left: list[str]) -> None:
    plan = dag("d", {"a": [], "b": [], "c": [], "e": [], "first": ["a", "b", "c"], "second": ["a", "c"]})

    found = undecided(plan, plan_of(plan, claim(plan, "a"), S.SUCCESS), [plan.number[task_id] for task_id in moved])

    assert found == [plan.number[task_id] for task_id in left]


def test_a_single_upstream_task_settles_its_downstream_tasks() -> None:
    plan = dag("d", {"a": [], "b": ["a"], "c": ["a"]}, rules={"c": "all_failed"})

    below = plan_of(plan, claim(plan, "a"), S.SUCCESS)

    assert by_task(plan, below.settled) == {"b": S.SCHEDULED, "c": S.SKIPPED}
    assert below.joins == below.left == []


def test_skips_of_a_branch_are_settled_at_any_depth() -> None:
    plan = dag("d", {"a": [], "b": ["a"], "c": ["a"], "e": ["c"]}, options={"a": {"branches": True}})

    below = plan_of(plan, claim(plan, "a"), S.SUCCESS, ("c", "e"))

    assert by_task(plan, below.settled) == {"b": S.SCHEDULED, "c": S.SKIPPED, "e": S.SKIPPED}
    assert plan.below_branch == {plan.number[name] for name in "bce"}


@pytest.mark.parametrize(
    "option",
    [
        {"depends_on_past": True},
        {"is_teardown": True},
        {"setups": ("further up",)},
        {"expand": {"kind": "product", "inputs": [{"task": "a", "key": "return_value"}]}},
    ],
)
def test_a_task_that_needs_more_than_its_upstream_states_is_left_to_the_scheduler(option: dict[str, Any]) -> None:
    plan = dag("d", {"a": [], "b": ["a"]}, options={"b": option})

    below = plan_of(plan, claim(plan, "a"), S.SUCCESS)

    assert (below.settled, below.joins, below.left) == ([], [], [plan.number["b"]])


def test_instances_of_a_mapped_group_follow_those_of_their_own_index() -> None:
    spec = {"kind": "product", "inputs": [{"literal": 3}]}
    group = {"expand": spec, "mapped_group": "g"}
    plan = dag("d", {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["b"]}, options=dict.fromkeys("abc", group))

    below = plan_of(plan, claim(plan, "b", map_index=2), S.SUCCESS)

    assert below.peer_joins == [plan.number["c"]]  # its other upstream task counts with index 2 only
    assert below.joins == [plan.number["d"]]  # outside of the group every instance counts
    below = plan_of(plan, claim(plan, "a", map_index=2), S.SUCCESS)
    assert [(one.task_no, one.map_index) for one in below.settled] == [(plan.number["b"], 2)]


def test_the_successor_is_the_best_ranked_task_that_fits() -> None:
    plan = dag("d", {"a": [], "b": ["a"], "c": ["a"]})
    ready = [Decision(plan.number[name], S.SCHEDULED, "") for name in ("b", "c")]

    assert choose_successor(plan, claim(plan, "a"), ready) == 0
    assert choose_successor(plan, claim(plan, "a"), [Decision(1, S.SKIPPED, "")]) is None


def test_a_successor_needs_enough_slots() -> None:
    plan = dag("d", {"a": [], "b": ["a"]}, task={"pool_slots": 3})
    ready = [Decision(1, S.SCHEDULED, "")]

    assert choose_successor(plan, claim(plan, "a", pool_slots=2), ready) is None
    assert choose_successor(plan, claim(plan, "a", pool_slots=3), ready) == 0


def test_a_task_with_a_limit_of_its_own_is_no_successor() -> None:
    plan = dag("d", {"a": [], "b": ["a"]}, options={"b": {"max_active_tis_per_dag": 1}})

    assert choose_successor(plan, claim(plan, "a"), [Decision(1, S.SCHEDULED, "")]) is None


def moved(task_id: str, state: S, *, queue: str = "default", pool: str = "default_pool", slots: int = 1) -> Moved:
    return Moved(9, task_id, -1, queue, 1, "x" if state is S.QUEUED else None, state, pool, slots)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (Reported(False, True, (moved("b", S.QUEUED),)), []),
        (Reported(True, True, (moved("b", S.QUEUED),)), []),
        (Reported(True, True, ()), ["queue"]),
        (Reported(False, True, (moved("b", S.SCHEDULED),)), ["queue"]),
        (Reported(False, True, (moved("b", S.SKIPPED),)), ["run:7"]),
        (Reported(False, True, (moved("c", S.SKIPPED),)), []),
        (Reported(False, False, ()), ["run:7"]),
        (Reported(True, True, (), moved("w", S.QUEUED)), []),
        (Reported(True, True, (moved("b", S.SCHEDULED),), moved("w", S.QUEUED)), []),
        (Reported(True, True, (moved("b", S.SCHEDULED, queue="gpu"),), moved("w", S.QUEUED)), ["queue"]),
        (Reported(True, True, (moved("b", S.SCHEDULED, pool="other"),), moved("w", S.QUEUED)), ["queue"]),
    ],
)
def test_wakeups_name_the_services_and_runs_that_have_something_to_do(reported: Reported, expected: list[str]) -> None:
    plan = dag("d", {"a": [], "b": ["a"], "c": ["b"]})

    assert wakeup_tokens(claim(plan, "a"), plan, reported, needs_scheduler=False) == expected


def test_slots_that_no_task_got_wake_a_scheduler() -> None:
    plan = dag("d", {"a": [], "b": ["a"]})
    big = claim(plan, "a", pool_slots=2)

    assert wakeup_tokens(big, plan, Reported(True, True, (moved("b", S.QUEUED),)), needs_scheduler=False) == ["queue"]
    assert wakeup_tokens(big, plan, Reported(True, True, (), moved("w", S.QUEUED)), needs_scheduler=False) == ["queue"]
    assert wakeup_tokens(big, plan, Reported(True, True, (), moved("w", S.QUEUED, slots=2)), needs_scheduler=False) == []
    assert wakeup_tokens(big, plan, Reported(False, True, (moved("b", S.QUEUED),)), needs_scheduler=False) == []


def test_work_left_to_the_scheduler_and_the_next_run_wake_a_scheduler() -> None:
    plan = dag("d", {"a": [], "b": ["a"]}, options={"b": {"depends_on_past": True}})

    assert wakeup_tokens(claim(plan, "a"), plan, Reported(False, True, ()), needs_scheduler=True) == ["run:7", "next:7"]


def test_a_notice_and_an_updated_asset_wake_a_scheduler() -> None:
    plan = dag("d", {"a": []}, options={"a": {"notify": ("on_failure", "asset"), "outlets": ("s3://x",)}})

    assert wakeup_tokens(claim(plan, "a"), plan, Reported(False, True, ()), needs_scheduler=False) == ["notify", "plan"]


def by_task(plan: SerializedDag, decisions: list[Decision]) -> dict[str, S]:
    return {plan.tasks[decision.task_no].task_id: decision.state for decision in decisions}


def test_a_decision_after_a_failure_names_the_failed_task() -> None:
    plan = dag("d", {"a": [], "b": ["a"]})

    (settled,) = plan_of(plan, claim(plan, "a"), S.FAILED).settled

    assert settled.reason == "1 upstream task failed: a"


@pytest.mark.parametrize("limit", ["max_active_tis_per_dag", "max_active_tis_per_dagrun"])
def test_the_end_of_a_task_with_a_limit_wakes_the_queue_service_for_those_behind_it(limit: str) -> None:
    plan = dag("d", {"a": []}, options={"a": {limit: 1}})

    assert "queue" in wakeup_tokens(claim(plan, "a"), plan, Reported(False, True, ()), needs_scheduler=False)
