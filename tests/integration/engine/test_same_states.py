"""Random DAGs reach the same states with follow on, with follow off, and when the whole DAG is evaluated in memory."""

import random
from collections.abc import Callable

import pytest
from support.scenario import Scenario, dag

from scheduler.authoring.trigger_rule import TriggerRule
from scheduler.deciding.evaluate import evaluate, run_state
from scheduler.serialized import SerializedDag
from scheduler.states import FINISHED, RunState, TaskState
from scheduler.store.claims import Claim

#: all_success acts on whichever of a skip and a failure it sees first, so its end may depend on the order; Airflow's does too.
RULES = [str(rule) for rule in TriggerRule]
OUTCOMES = (TaskState.SUCCESS, TaskState.SUCCESS, TaskState.FAILED, TaskState.SKIPPED)


def random_dag(dice: random.Random, name: str) -> SerializedDag:
    count = dice.randint(1, 25)
    names = [f"t{number:02}" for number in range(count)]
    edges = {one: sorted(dice.sample(names[:at], dice.randint(0, min(at, 3)))) for at, one in enumerate(names)}
    return dag(name, edges, rules={one: dice.choice(RULES) for one in names})


def in_memory(dag: SerializedDag, outcomes: dict[str, TaskState], dice: random.Random) -> tuple[dict[str, str], RunState]:
    """Evaluate, run what may run one at a time in random order, until nothing is open."""
    states = {no: {-1: TaskState.NONE} for no in range(len(dag.tasks))}
    while True:
        for decision in evaluate(dag, states).decisions:
            states[decision.task_no][-1] = decision.state
        ready = [no for no, state in states.items() if state[-1] is TaskState.SCHEDULED]
        if not ready:
            break
        no = dice.choice(ready)
        states[no][-1] = outcomes[dag.tasks[no].task_id]
    assert {state[-1] for state in states.values()} <= FINISHED
    ended = run_state(dag, states)
    assert ended is not None
    return {dag.tasks[no].task_id: state[-1].value for no, state in states.items()}, ended


@pytest.mark.parametrize("seed", range(3))
def test_follow_on_follow_off_and_memory_agree(make_scenario: Callable[..., Scenario], seed: int) -> None:
    dice = random.Random(seed)
    on, off = make_scenario(schedulers=2), make_scenario(schedulers=1, follow=False)
    for number in range(12):
        new = random_dag(dice, f"dag{seed}_{number}")
        outcomes = {task.task_id: dice.choice(OUTCOMES) for task in new.tasks}
        if _order_matters(new, outcomes):
            continue
        on.add(new)
        expected, ended = in_memory(new, outcomes, dice)
        for scenario, run_id in ((on, "on"), (off, "off")):
            run = scenario.trigger(new.dag_id, run_id=run_id)

            def outcome(claim: Claim, outcomes: dict[str, TaskState] = outcomes) -> TaskState:
                return outcomes[claim.task_id]

            scenario.run_to_end(outcome=outcome, shuffle=True)

            assert scenario.states(run) == expected, f"seed {seed}, DAG {number}, follow {run_id}"
            assert scenario.run_state(run) == ended
    assert on.rows("select count(*) from dag_run")[0][0] >= 10


def _order_matters(dag: SerializedDag, outcomes: dict[str, TaskState]) -> bool:
    """Whether two orders of completion reach different states, as all_success does between a skip and a failure."""
    ends = [in_memory(dag, outcomes, random.Random(order)) for order in range(6)]
    return any(end != ends[0] for end in ends)
