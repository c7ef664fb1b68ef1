"""A run in memory: nothing but `evaluate`, told how each task instance ends."""

import json
from collections.abc import Callable

from scheduler.deciding import expansion
from scheduler.deciding.evaluate import Evaluation, Facts, evaluate, run_state
from scheduler.deciding.rules import Upstream, decide
from scheduler.serialized.dag import SerializedDag
from scheduler.states import FAILURES, Branched, RunState
from scheduler.states import TaskState as S
from scheduler.store.worker.claims import Ending

from .random_dags import Plan

Instance = tuple[int, int]


class Run:
    """The states of a run by task number and map index; what may run is SCHEDULED."""

    def __init__(self, dag: SerializedDag) -> None:
        self.dag = dag
        self.states: dict[int, dict[int, S]] = {no: {-1: S.NONE} for no in range(len(dag.tasks))}
        self.branched: list[Branched] = []
        #: A mapped task that returned nothing leaves nothing to map over, as store/facts says.
        self._lengths = {(task.task_id, "return_value"): 0 for task in self.dag.tasks if task.is_mapped}
        self.settle()

    def settle(self) -> None:
        """Apply every decision and expansion. One pass is a fixpoint: after its decisions there is nothing left to decide."""
        evaluation = self._evaluate()
        while evaluation.expand:
            for no in evaluation.expand:
                self._expand(no)
            evaluation = self._evaluate()
        for decision in evaluation.decisions:
            assert self.states[decision.task_no][decision.map_index] is S.NONE
            self.states[decision.task_no][decision.map_index] = decision.state
        assert not self._evaluate().decisions, "one pass left something to decide"
        if self._evaluate().expand:
            self.settle()

    def ready(self) -> list[Instance]:
        return [(no, index) for no, of in self.states.items() for index, state in of.items() if state is S.SCHEDULED]

    def end(self, instance: Instance, ending: Ending) -> None:
        """One task instance ran and ended."""
        no, index = instance
        assert self.states[no][index] is S.SCHEDULED
        self.states[no][index] = ending.state
        if ending.skip is not None:
            self.branched.append(Branched(task_no=no, map_index=index, skip=frozenset(ending.skip)))
        if ending.result is not None:
            task, key = self.dag.tasks[no], (self.dag.tasks[no].task_id, "return_value")
            self._lengths[key] = self._lengths.get(key, 0) + 1 if task.is_mapped else len(json.loads(ending.result))
        self.settle()

    def run_to_end(self, plan: Plan, choose: Callable[[list[Instance]], Instance]) -> None:
        while ready := self.ready():
            one = choose(ready)
            self.end(one, plan.ending(*one))

    @property
    def state(self) -> RunState | None:
        return run_state(self.dag, self.states)

    def named(self) -> dict[tuple[str, int], str]:
        """(task_id, map index) -> state."""
        return {(self.dag.tasks[no].task_id, index): state.value for no, of in self.states.items() for index, state in of.items()}

    def _evaluate(self) -> Evaluation:
        return evaluate(self.dag, self.states, Facts(branched=tuple(self.branched)))

    def _expand(self, no: int) -> None:
        spec = self.dag.tasks[no].expand
        assert spec is not None
        count = expansion.count(spec, self._lengths)
        if count:
            self.states[no] = dict.fromkeys(range(count), S.NONE)
        else:
            self.states[no] = {-1: S.UPSTREAM_FAILED if count is None else S.SKIPPED}


def certain(run: Run, *, same_order: bool = False) -> set[str]:
    """The tasks that end as they did whatever the order in which the others end, or with `same_order`, in this very order.

    all_success, and the need of setups, act at once on a skip and on a failure: with both, the first one wins, and one task
    that ends may bring about both. Whatever lies below such a task is uncertain too.
    """
    uncertain: set[int] = set()
    for no in range(len(run.dag.tasks)):
        decided = _skip_or_failure(run, no) or (not same_order and (_expanded_or_not(run, no) or _skipped_or_earlier(run, no)))
        if decided or uncertain.intersection(run.dag.upstream[no]):
            uncertain.add(no)
    return {task.task_id for no, task in enumerate(run.dag.tasks) if no not in uncertain}


def _skip_or_failure(run: Run, no: int) -> bool:
    task = run.dag.tasks[no]
    setups = [state for name in task.setups for state in run.states[run.dag.number[name]].values()]
    upstream = [state for above in run.dag.upstream[no] for state in run.states[above].values()]
    seen = {*setups, *upstream}
    return (
        not task.is_teardown and S.SKIPPED in seen and bool(seen & FAILURES) and bool(setups or task.trigger_rule == "all_success")
    )


def _expanded_or_not(run: Run, no: int) -> bool:
    """A mapped task that is skipped or failed at once is so as a whole, or in each instance if it was expanded before."""
    expand = run.dag.tasks[no].expand
    not_run = {S.SKIPPED, S.UPSTREAM_FAILED}.intersection(run.states[no].values())
    return expand is not None and "task" in expand["inputs"][0] and bool(not_run)


def _skipped_or_earlier(run: Run, no: int) -> bool:
    """What a branch skips may have been decided before by a rule that does not wait for the branch."""
    task = run.dag.tasks[no]
    for branch in run.branched:
        if task.task_id not in branch.skip:
            continue
        others = [
            state
            for above in run.dag.upstream[no]
            for index, state in run.states[above].items()
            if (above, index) != (branch.task_no, branch.map_index)
        ]
        early = decide(task.trigger_rule, Upstream.of(others, total=len(others) + 1)).state is not None
        if branch.task_no not in run.dag.upstream[no] or early or task.is_mapped or task.setups:
            return True
    return False
