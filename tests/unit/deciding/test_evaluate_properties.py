"""Whole runs in memory: every run ends, one pass is a fixpoint, and only rules that allow it depend on the order of completion."""

import random
from collections import Counter

from hypothesis import assume, example, given, settings, target
from hypothesis import strategies as st
from support import memory
from support.random_dags import Plan, random_plan

from paceline.states import FAILURES, FINISHED, RunState
from paceline.states import TaskState as S
from scheduler.deciding.evaluate import NO_FACTS, evaluate

plans = st.builds(lambda size, seed: random_plan("d", size=size, seed=seed), st.integers(1, 60), st.integers(0, 2**32))


def ended(plan: Plan, order: int) -> memory.Run:
    """The run of a plan, whose ready tasks end in an order drawn from `order`."""
    run, dice = memory.Run(plan.dag), random.Random(order)
    run.run_to_end(plan, dice.choice)
    return run


@settings(max_examples=100, deadline=None)
@given(plans, st.integers(0, 2**32))
def test_every_run_ends(plan: Plan, order: int) -> None:
    run = ended(plan, order)

    states = Counter(state for of in run.states.values() for state in of.values())
    assert run.state in {RunState.SUCCESS, RunState.FAILED}
    if not states.keys() <= FINISHED:
        # Only a rule that nothing can meet any more leaves a run in a deadlock, which fails it.
        assert states.keys() - FINISHED == {S.NONE}
        assert run.state is RunState.FAILED


@settings(max_examples=40, deadline=None)
@given(plans, st.integers(0, 2**32), st.integers(0, 2**32))
@example(random_plan("d", size=14, seed=2575901), 0, 1)  # of a mapped branch one instance skips a task, another one fails
@example(random_plan("d", size=26, seed=26), 0, 1)  # below a setup that fails, rules skip a task for other reasons
def test_the_order_of_completion_does_not_matter(plan: Plan, one: int, other: int) -> None:
    first, second = ended(plan, one), ended(plan, other)

    certain = memory.certain(first)
    target(len(certain))
    assert only(second, certain) == only(first, certain)
    if len(certain) == len(plan.dag.tasks):
        assert second.state is first.state


def only(run: memory.Run, certain: set[str]) -> dict[tuple[str, int], str]:
    return {key: state for key, state in run.named().items() if key[0] in certain}


def test_most_tasks_are_certain() -> None:
    """Otherwise the comparison above would prove little."""
    runs = [ended(random_plan("d", size=30, seed=seed), seed) for seed in range(40)]

    assert sum(len(memory.certain(run)) for run in runs) > 0.5 * sum(len(run.plan.tasks) for run in runs)


@settings(max_examples=100, deadline=None)
@given(plans, st.integers(0, 2**32))
def test_decisions_are_final_and_each_has_its_reason(plan: Plan, order: int) -> None:
    run, dice = memory.Run(plan.dag), random.Random(order)
    while ready := run.ready():
        before = run.named()
        one = dice.choice(ready)
        run.end(one, plan.ending(*one))

        task = plan.dag.tasks[one[0]].task_id
        kept = {key: state for key, state in before.items() if state != "none" and key != (task, one[1])}
        assert kept.items() <= run.named().items()

    for decision in evaluate(plan.dag, {no: {-1: S.NONE} for no in range(len(plan.dag.tasks))}, NO_FACTS).decisions:
        assert decision.reason


@settings(max_examples=100, deadline=None)
@given(plans, st.integers(0, 2**32))
def test_a_run_fails_by_its_leaves(plan: Plan, order: int) -> None:
    run = ended(plan, order)
    assume({state for of in run.states.values() for state in of.values()} <= FINISHED)

    inner = {name for task in plan.dag.tasks if not task.is_teardown for name in task.upstream}
    leaves = [no for no, task in enumerate(plan.dag.tasks) if task.task_id not in inner and not task.is_teardown]
    counted = leaves + [no for no, task in enumerate(plan.dag.tasks) if task.on_failure_fail_dagrun]
    failed = any(state in FAILURES for no in counted for state in run.states[no].values())
    assert run.state is (RunState.FAILED if failed else RunState.SUCCESS)
