"""The pure part of fast-follow: which tasks a result settles, the successor, and the wakeups."""

from collections.abc import Sequence
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


def plan(edges: str, *, rules: dict[str, str] | None = None, **options: dict[str, Any]) -> SerializedDag:
    """A DAG from "a  b<a  c<ab": each task with its upstream tasks. Options of a task are given by its name."""
    return dag("d", {one[0]: list(one[2:]) for one in edges.split()}, rules=rules, options=options)


MAPPED_OVER_A = {"kind": "product", "inputs": [{"task": "a", "key": "return_value"}]}
BRANCH = plan("a b<a c<a e<c", a={"branches": True})


def join(rule: str) -> SerializedDag:
    return plan("a b j<ab", rules={"j": rule})


@pytest.mark.parametrize(
    ("plan", "ending", "skipped", "settled", "joins", "left"),
    [
        # A join is settled only if no other result can change it.
        (join("all_success"), S.SUCCESS, (), {}, "j", ""),
        (join("all_success"), S.FAILED, (), {"j": S.UPSTREAM_FAILED}, "", ""),
        (join("all_success"), S.SKIPPED, (), {"j": S.SKIPPED}, "", ""),
        (join("one_success"), S.SUCCESS, (), {"j": S.SCHEDULED}, "", ""),
        (join("one_failed"), S.FAILED, (), {"j": S.SCHEDULED}, "", ""),
        (join("all_done"), S.FAILED, (), {}, "j", ""),
        (join("always"), S.SUCCESS, (), {"j": S.SCHEDULED}, "", ""),
        # A single upstream task settles its downstream tasks.
        (plan("a b<a c<a", rules={"c": "all_failed"}), S.SUCCESS, (), {"b": S.SCHEDULED, "c": S.SKIPPED}, "", ""),
        # The skips of a branch are settled at any depth.
        (BRANCH, S.SUCCESS, ("c", "e"), {"b": S.SCHEDULED, "c": S.SKIPPED, "e": S.SKIPPED}, "", ""),
        # A task that needs more than its upstream states is left to the scheduler.
        (plan("a b<a", b={"depends_on_past": True}), S.SUCCESS, (), {}, "", "b"),
        (plan("a b<a", b={"is_teardown": True}), S.SUCCESS, (), {}, "", "b"),
        (plan("a b<a", b={"setups": ("further up",)}), S.SUCCESS, (), {}, "", "b"),
        (plan("a b<a", b={"expand": MAPPED_OVER_A}), S.SUCCESS, (), {}, "", "b"),
    ],
)
def test_what_the_end_of_a_settles(
    plan: SerializedDag, ending: S, skipped: Sequence[str], settled: dict[str, S], joins: str, left: str
) -> None:
    below = plan_of(plan, claim(plan, "a"), ending, skipped)

    assert {plan.tasks[one.task_no].task_id: one.state for one in below.settled} == settled
    assert [[plan.tasks[no].task_id for no in numbers] for numbers in (below.joins, below.left)] == [list(joins), list(left)]


def test_the_tasks_below_a_branch_are_known() -> None:
    assert BRANCH.below_branch == {BRANCH.number[name] for name in "bce"}


def test_a_decision_after_a_failure_names_the_failed_task() -> None:
    chain = plan("a b<a")

    assert [one.reason for one in plan_of(chain, claim(chain, "a"), S.FAILED).settled] == ["1 upstream task failed: a"]


def test_instances_of_a_mapped_group_follow_those_of_their_own_index() -> None:
    group = {"expand": {"kind": "product", "inputs": [{"literal": 3}]}, "mapped_group": "g"}
    mapped = plan("a b<a c<ab d<b", a=group, b=group, c=group)

    below = plan_of(mapped, claim(mapped, "b", map_index=2), S.SUCCESS)

    assert below.peer_joins == [mapped.number["c"]]  # its other upstream task counts with index 2 only
    assert below.joins == [mapped.number["d"]]  # outside of the group every instance counts
    below = plan_of(mapped, claim(mapped, "a", map_index=2), S.SUCCESS)
    assert [(one.task_no, one.map_index) for one in below.settled] == [(mapped.number["b"], 2)]


@pytest.mark.parametrize(
    ("moved", "left"), [("", "fs"), ("b", "s"), ("c", ""), ("f", "s"), ("fs", ""), ("e", "fs")]
)  # fmt: skip
def test_a_report_examines_joins_that_no_later_report_can_decide(moved: str, left: str) -> None:
    two_joins = plan("a b c e f<abc s<ac")
    below = plan_of(two_joins, claim(two_joins, "a"), S.SUCCESS)

    found = undecided(two_joins, below, [two_joins.number[name] for name in moved])

    assert found == [two_joins.number[name] for name in left]


@pytest.mark.parametrize(
    ("options", "slots", "states", "chosen"),
    [
        ({}, 1, [S.SCHEDULED, S.SCHEDULED], 0),  # the best in rank
        ({}, 1, [S.SKIPPED], None),
        ({"pool_slots": 3}, 2, [S.SCHEDULED], None),
        ({"pool_slots": 3}, 3, [S.SCHEDULED], 0),
        ({"max_active_tis_per_dag": 1}, 1, [S.SCHEDULED], None),
    ],
)
def test_the_successor_is_the_best_task_that_fits_and_has_no_limit_of_its_own(
    options: dict[str, Any], slots: int, states: list[S], chosen: int | None
) -> None:
    two = plan("a b<a c<a", b=options)
    ready = [Decision(no, state, "") for no, state in enumerate(states, 1)]

    assert choose_successor(two, claim(two, "a", pool_slots=slots), ready) == chosen


def moved(task_id: str, state: S, *, queue: str = "default", pool: str = "default_pool", slots: int = 1) -> Moved:
    return Moved(9, task_id, -1, queue, 1, "x" if state is S.QUEUED else None, state, pool, slots)


CHAIN = plan("a b<a c<b")
OF_PAST = plan("a b<a", b={"depends_on_past": True})
NOTICED = plan("a", a={"notify": ("on_failure", "asset"), "outlets": ("s3://x",)})
QUEUED_B, WAITING = moved("b", S.QUEUED), moved("w", S.QUEUED)
NOTHING = Reported(False, True, ())


@pytest.mark.parametrize(
    ("plan", "slots", "reported", "expected"),
    [
        (CHAIN, 1, Reported(False, True, (QUEUED_B,)), []),
        (CHAIN, 1, Reported(True, True, (QUEUED_B,)), []),
        (CHAIN, 1, Reported(True, True, ()), ["queue"]),
        (CHAIN, 1, Reported(False, True, (moved("b", S.SCHEDULED),)), ["queue"]),
        (CHAIN, 1, Reported(False, True, (moved("b", S.SKIPPED),)), ["run:7"]),
        (CHAIN, 1, Reported(False, True, (moved("c", S.SKIPPED),)), []),
        (CHAIN, 1, Reported(False, False, ()), ["run:7"]),
        (CHAIN, 1, Reported(True, True, (), WAITING), []),
        (CHAIN, 1, Reported(True, True, (moved("b", S.SCHEDULED),), WAITING), []),
        (CHAIN, 1, Reported(True, True, (moved("b", S.SCHEDULED, queue="gpu"),), WAITING), ["queue"]),
        (CHAIN, 1, Reported(True, True, (moved("b", S.SCHEDULED, pool="other"),), WAITING), ["queue"]),
        # Slots that no task got.
        (CHAIN, 2, Reported(True, True, (QUEUED_B,)), ["queue"]),
        (CHAIN, 2, Reported(True, True, (), WAITING), ["queue"]),
        (CHAIN, 2, Reported(True, True, (), moved("w", S.QUEUED, slots=2)), []),
        (CHAIN, 2, Reported(False, True, (QUEUED_B,)), []),
        # A notice and an updated asset.
        (NOTICED, 1, NOTHING, ["notify", "plan"]),
        # Tasks behind a limit of this task's own.
        (plan("a", a={"max_active_tis_per_dag": 1}), 1, NOTHING, ["queue"]),
        (plan("a", a={"max_active_tis_per_dagrun": 1}), 1, NOTHING, ["queue"]),
    ],
)
def test_wakeups_name_the_services_and_runs_that_have_something_to_do(
    plan: SerializedDag, slots: int, reported: Reported, expected: list[str]
) -> None:
    assert wakeup_tokens(claim(plan, "a", pool_slots=slots), plan, reported, needs_scheduler=False) == expected


def test_work_left_to_the_scheduler_and_the_next_run_wake_a_scheduler() -> None:
    assert wakeup_tokens(claim(OF_PAST, "a"), OF_PAST, NOTHING, needs_scheduler=True) == ["run:7", "next:7"]
