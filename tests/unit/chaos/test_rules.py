"""The checker's table of trigger rules agrees with that of the scheduler, although both are written separately."""

from itertools import product

import pytest
from chaos.rules import ALLOWED, RUN, verdicts
from chaos.shapes import RULES, plan

from paceline.states import TaskState
from scheduler.deciding.rules import Upstream, decide

ENDS = ("success", "failed", "skipped", "upstream_failed")


@pytest.mark.parametrize("rule", sorted(ALLOWED))
def test_the_checker_allows_every_decision(rule: str) -> None:
    for count in range(4):
        for states in product(ENDS, repeat=count):
            decided = decide(rule, Upstream.of([TaskState(state) for state in states])).state
            assert decided is not None
            assert ("run" if decided is TaskState.SCHEDULED else decided.value) in verdicts(rule, states), states


def test_a_task_without_upstream_tasks_may_always_run() -> None:
    assert verdicts("one_success", []) == {RUN}


@pytest.mark.parametrize("seed", range(5))
def test_the_checker_has_every_planned_rule(seed: int) -> None:
    assert set(RULES) <= set(ALLOWED)
    assert {task.rule for dag in plan(seed).dags.values() for task in dag.tasks} <= set(ALLOWED)
