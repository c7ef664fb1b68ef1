"""What a run's states ask for next: pure, to a fixpoint in one pass, each decision with its reason."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.deciding import expansion
from scheduler.deciding.rules import Upstream, Verdict, decide, decide_teardown, needs_setups
from scheduler.serialized import SerializedDag, SerializedTask
from scheduler.states import FAILURES, FINISHED, Branched, Decision, RunState
from scheduler.states import TaskState as S

#: By task number and map index (-1: not mapped, or not expanded yet); what is not in it does not exist in this run.
States = Mapping[int, Mapping[int, S]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a run's tasks look at beside the states of the run."""

    branched: tuple[Branched, ...] = ()
    #: Why a task still waits for the run before, by task number; see deciding/past.
    past: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Decisions to apply, mapped tasks whose inputs are known and can be expanded, and why the others wait."""

    decisions: list[Decision]
    expand: list[int]
    waiting: dict[tuple[int, int], str]


NO_FACTS = Facts()


def evaluate(dag: SerializedDag, states: States, facts: Facts = NO_FACTS) -> Evaluation:
    """Decide every undecided task instance of a run.

    Tasks are numbered in topological order, so skips and failures travel all the way down in this one pass.
    """
    run = _Run(dag, states, facts)
    found = Evaluation([], [], {})
    for no, task in enumerate(dag.tasks):
        undecided = [index for index, state in run.states.get(no, {}).items() if state is S.NONE]
        shared: Verdict | None = None
        for index in undecided:
            if task.mapped_group is not None or shared is None:
                shared = run.verdict(no, task, index)
            if task.is_mapped and index < 0 and shared.state in {None, S.SCHEDULED}:
                if run.can_expand(task):
                    found.expand.append(no)
                found.waiting[no, index] = "its instances are not known yet: " + shared.reason
            elif shared.state is None:
                found.waiting[no, index] = shared.reason
            else:
                run.decide(no, index, shared.state)
                found.decisions.append(Decision(no, shared.state, shared.reason, index))
    return found


def run_state(dag: SerializedDag, states: States, waiting_for_past: bool = False) -> RunState | None:
    """How a run ends, None while it goes on: failed if a leaf task failed, success otherwise.

    A run in which nothing moves and nothing is decided any more ("deadlock") has failed, unless it waits for an earlier one.
    """
    open_states = {state for instances in states.values() for state in instances.values()} - FINISHED
    if open_states == {S.NONE} and not waiting_for_past:
        evaluation = evaluate(dag, states)
        return None if evaluation.decisions or evaluation.expand else RunState.FAILED
    if open_states:
        return None
    ended = {state for no in dag.leaves for state in states.get(no, {}).values()}
    return RunState.FAILED if ended & FAILURES else RunState.SUCCESS


class _Run:
    """A run while it is decided: its states, which decisions change, and counts of them by task."""

    def __init__(self, dag: SerializedDag, states: States, facts: Facts) -> None:
        self._dag = dag
        self.states = {no: dict(instances) for no, instances in states.items()}
        self._counts = {no: Counter(instances.values()) for no, instances in self.states.items()}
        self._past = facts.past
        #: The branch that skips a task: all its instances, or one of them if both are in one mapped group.
        self._skips: dict[str | tuple[str, int], str] = {}
        for one in facts.branched:
            if one.task_no >= len(dag.tasks):
                continue  # it ran while a newer version without it took over
            branch = dag.tasks[one.task_no]
            for task_id in one.skip & dag.number.keys():
                group = dag.tasks[dag.number[task_id]].mapped_group
                in_one = group is not None and group == branch.mapped_group
                self._skips[(task_id, one.map_index) if in_one else task_id] = branch.task_id

    def decide(self, no: int, index: int, state: S) -> None:
        self.states[no][index] = state
        self._counts[no][S.NONE] -= 1
        self._counts[no][state] += 1

    def can_expand(self, task: SerializedTask) -> bool:
        """Whether every task that its expansion reads has ended."""
        assert task.expand is not None
        sources = (self._dag.number[name] for name in expansion.sources(task.expand) if name in self._dag.number)
        return all(self._ended(self._counts[no]) for no in sources if no in self._counts)

    def verdict(self, no: int, task: SerializedTask, index: int) -> Verdict:
        """What is to become of one undecided task instance, and why."""
        by = self._skips.get(task.task_id) or self._skips.get((task.task_id, index))
        if by is not None:
            return Verdict(S.SKIPPED, f"{by} decided to skip it")
        setups = self._upstream((self._dag.number[name] for name in task.setups), task, index)
        upstream = self._upstream(self._dag.upstream[no], task, index)
        if task.is_teardown:
            scope = self._upstream((self._dag.number[name] for name in task.scope), task, index)
            verdict = decide_teardown(upstream, scope, setups)
        else:
            verdict = needs_setups(setups) or decide(task.trigger_rule, upstream)
        waits = self._past.get(no)
        if waits and (verdict.state is S.SCHEDULED or (verdict.state is S.SKIPPED and task.wait_for_past_depends_before_skipping)):
            return Verdict(None, waits)
        return verdict

    def _upstream(self, above: Iterable[int], task: SerializedTask, index: int) -> Upstream:
        """Counts of the relevant instances: one of each task of the same mapped group, all of any other."""
        total: Counter[S] = Counter()
        for no in above:
            if no not in self.states:
                continue
            peers = task.mapped_group is not None and self._dag.tasks[no].mapped_group == task.mapped_group and index >= 0
            if peers and -1 not in self.states[no]:
                if index in self.states[no]:
                    total[self.states[no][index]] += 1
            else:
                total += self._counts[no]
        return Upstream.counted(total)

    @staticmethod
    def _ended(counts: Counter[S]) -> bool:
        return all(state in FINISHED for state, count in counts.items() if count)
