"""A run in the workers' memory store. The test determines how each task instance ends."""

from collections.abc import Callable
from datetime import UTC, datetime

from paceline.authoring.context import DagRun
from paceline.states import FAILURES
from paceline.states import TaskState as S
from scheduler.deciding.evaluate import Facts, evaluate
from scheduler.deciding.rules import Upstream, decide
from scheduler.serialized.dag import SerializedDag
from scheduler.store.worker.claims import Ending
from scheduler.testing.in_memory.store import MemoryStore

from .random_dags import Plan

Instance = tuple[int, int]
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


class Run(MemoryStore):
    """The states of a run by task number and map index. A task instance that may run is SCHEDULED."""

    def __init__(self, dag: SerializedDag) -> None:
        moments = dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "run_after"), MOMENT)
        super().__init__(dag, DagRun(dag_id=dag.dag_id, run_id="r", run_type="manual", **moments), max_map_length=1024)

    def settle(self) -> None:
        """Apply one pass of decisions. Unless mapped tasks must be expanded, check that a second pass would decide nothing."""
        facts = Facts(branched=tuple(self.branched))
        evaluation = evaluate(self.plan, self.states, facts)
        if not evaluation.expand:
            states = {no: dict(of_task) for no, of_task in self.states.items()}
            for decision in evaluation.decisions:
                assert states[decision.task_no][decision.map_index] is S.NONE
                states[decision.task_no][decision.map_index] = decision.state
            assert not evaluate(self.plan, states, facts).decisions, "one pass left something to decide"
        super().settle()

    def end(self, instance: Instance, ending: Ending) -> None:
        """Store the end of a task instance, and apply the following decisions."""
        claim = self.claim(*self.queue(self.at[instance]), "w")
        assert claim is not None and self.report(claim, ending)

    def ready(self) -> list[Instance]:
        return sorted(place for place, one in self.at.items() if one.state is S.SCHEDULED)

    def run_to_end(self, plan: Plan, choose: Callable[[list[Instance]], Instance]) -> None:
        while ready := self.ready():
            one = choose(ready)
            self.end(one, plan.ending(*one))

    def named(self) -> dict[tuple[str, int], str]:
        """(task_id, map index) -> state."""
        return {(self.plan.tasks[no].task_id, index): state.value for no, of in self.states.items() for index, state in of.items()}


def certain(run: Run, *, same_order: bool = False) -> set[str]:
    """The tasks whose end does not depend on the order in which others end; with `same_order`, in this order only.

    all_success, and the need of setups, act at once on a skip and on a failure: with both, the first one wins, and one task
    that ends may bring about both. Whatever lies below such a task is uncertain too.
    """
    uncertain: set[int] = set()
    for no in range(len(run.plan.tasks)):
        decided = _skip_or_failure(run, no) or (
            not same_order and (_expanded_or_not(run, no) or _skipped_or_earlier(run, no) or _rule_or_setup(run, no))
        )
        if decided or uncertain.intersection(run.plan.upstream[no]):
            uncertain.add(no)
    return {task.task_id for no, task in enumerate(run.plan.tasks) if no not in uncertain}


def _skip_or_failure(run: Run, no: int) -> bool:
    task, setups, upstream = run.plan.tasks[no], _setups(run, no), _upstream(run, no)
    seen = {*setups, *upstream}
    return (
        not task.is_teardown and S.SKIPPED in seen and bool(seen & FAILURES) and bool(setups or task.trigger_rule == "all_success")
    )


def _setups(run: Run, no: int) -> list[S]:
    """The states of the setups that a task needs."""
    return [state for name in run.plan.tasks[no].setups for state in run.states[run.plan.number[name]].values()]


def _upstream(run: Run, no: int) -> list[S]:
    """The states of the task instances directly upstream of a task."""
    return [state for above in run.plan.upstream[no] for state in run.states[above].values()]


def _expanded_or_not(run: Run, no: int) -> bool:
    """A mapped task that is skipped or failed at once is so as a whole, or in each instance if it was expanded before."""
    expand = run.plan.tasks[no].expand
    not_run = {S.SKIPPED, S.UPSTREAM_FAILED}.intersection(run.states[no].values())
    return expand is not None and "task" in expand["inputs"][0] and bool(not_run)


def _rule_or_setup(run: Run, no: int) -> bool:
    """all_failed, for one, skips a task at once below a success, and a setup that fails makes it upstream_failed at once."""
    upstream = _upstream(run, no)
    by_rule = decide(run.plan.tasks[no].trigger_rule, Upstream.of(upstream, total=len(upstream))).state
    return by_rule is S.SKIPPED and not FAILURES.isdisjoint(_setups(run, no))


def _skipped_or_earlier(run: Run, no: int) -> bool:
    """Tasks that a branch skips may have been decided before by a rule that does not wait for the branch."""
    task = run.plan.tasks[no]
    for branch in run.branched:
        if task.task_id not in branch.skip:
            continue
        others = [
            state
            for above in run.plan.upstream[no]
            for index, state in run.states[above].items()
            if (above, index) != (branch.task_no, branch.map_index)
        ]
        early = decide(task.trigger_rule, Upstream.of(others, total=len(others) + 1)).state is not None
        if branch.task_no not in run.plan.upstream[no] or early or task.is_mapped or task.setups:
            return True
    return False
