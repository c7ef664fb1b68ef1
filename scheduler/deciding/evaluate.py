"""What a run's states ask for next: pure, to a fixpoint in one pass, each decision with its reason."""

from collections.abc import Mapping, Sequence

from scheduler.deciding.rules import Upstream, decide
from scheduler.serialized import SerializedDag
from scheduler.states import FAILURES, FINISHED, Decision, RunState, TaskState


def evaluate(dag: SerializedDag, states: Mapping[int, TaskState]) -> list[Decision]:
    """Decide every undecided task of a run. `states` is by task_no; a task that is not in it does not exist in this run.

    Tasks are numbered in topological order, so skips and failures travel all the way down in this one pass.
    """
    after = dict(states)
    decisions = []
    for no, task in enumerate(dag.tasks):
        if after.get(no) is not TaskState.NONE:
            continue
        upstream = Upstream.of(after[above] for above in dag.upstream[no] if above in after)
        verdict = decide(task.trigger_rule, upstream)
        if verdict.state is not None:
            after[no] = verdict.state
            decisions.append(Decision(no, verdict.state, verdict.reason))
    return decisions


def run_state(dag: SerializedDag, states: Mapping[int, TaskState]) -> RunState | None:
    """How a run ends, None while it goes on: failed if a leaf task failed, success otherwise."""
    if any(state not in FINISHED for state in states.values()):
        return None
    leaves: Sequence[int] = [no for no in dag.leaves if no in states]
    return RunState.FAILED if any(states[no] in FAILURES for no in leaves) else RunState.SUCCESS
