"""The pure half of following: what one result settles, who inherits, and whom to wake."""

from datetime import UTC, datetime

import pytest
from support.scenario import dag

from scheduler.follow import choose_heir, rings, settle
from scheduler.serialized import SerializedDag
from scheduler.states import Decision, TaskState
from scheduler.store.claims import Claim, Moved, Reported

S = TaskState
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def claim(plan: SerializedDag, task_id: str, pool_slots: int = 1) -> Claim:
    return Claim(
        id=1, dispatch_id="d", task_id=task_id, map_index=-1, task_no=plan.number[task_id], try_number=1, max_tries=0,
        queue="default", pool="default_pool", pool_slots=pool_slots, priority_weight=1, started_at=NOW, dag_run_id=7, dag_id="d",
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

    decided, joins = settle(plan, plan.number["a"], ending)

    assert [one.state for one in decided] == ([settled] if settled else [])
    assert joins == ([] if settled else [plan.number["join"]])


def test_a_single_upstream_task_settles_what_comes_after_it() -> None:
    plan = dag("d", {"a": [], "b": ["a"], "c": ["a"]}, rules={"c": "all_failed"})

    decided, joins = settle(plan, 0, S.SUCCESS)

    assert {plan.tasks[one.task_no].task_id: one.state for one in decided} == {"b": S.SCHEDULED, "c": S.SKIPPED}
    assert joins == []


def test_the_heir_is_the_best_ranked_that_fits() -> None:
    plan = dag("d", {"a": [], "b": ["a"], "c": ["a"]})
    ready = [Decision(plan.number[name], S.SCHEDULED, "") for name in ("b", "c")]

    assert choose_heir(plan, claim(plan, "a"), ready) == plan.number["b"]
    assert choose_heir(plan, claim(plan, "a"), [Decision(1, S.SKIPPED, "")]) is None


def test_nobody_inherits_fewer_slots_than_it_needs() -> None:
    plan = dag("d", {"a": [], "b": ["a"]}, task={"pool_slots": 3})
    ready = [Decision(1, S.SCHEDULED, "")]

    assert choose_heir(plan, claim(plan, "a", pool_slots=2), ready) is None
    assert choose_heir(plan, claim(plan, "a", pool_slots=3), ready) == 1


def moved(task_id: str, state: S) -> Moved:
    return Moved(9, task_id, -1, "default", 1, "x" if state is S.QUEUED else None, state)


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
    ],
)
def test_rings_wake_whoever_has_something_to_do(reported: Reported, expected: list[str]) -> None:
    plan = dag("d", {"a": [], "b": ["a"], "c": ["b"]})

    assert rings(claim(plan, "a"), plan, reported, following=True) == expected
