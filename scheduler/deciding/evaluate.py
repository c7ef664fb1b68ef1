"""What a run's states ask for next: pure, to a fixpoint in one pass, each decision with its reason."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from scheduler.deciding import expansion
from scheduler.deciding.rules import MOST_NAMES, Upstream, Verdict, decide, decide_teardown, needs_setups, needs_sources
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
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
#: Met by a single upstream task instance.
FAST_RULES = frozenset({"one_success", "one_failed", "one_done"})
NONE_ABOVE = Upstream(total=0)
ROOT = decide("all_success", NONE_ABOVE)


def evaluate(dag: SerializedDag, states: States, facts: Facts = NO_FACTS) -> Evaluation:
    """Decide every undecided task instance of a run.

    Tasks are numbered in topological order, so skips and failures travel all the way down in this one pass.
    """
    run = _Run(dag, states, facts)
    found = Evaluation([], [], {})
    for no in run.undecided():
        task = dag.tasks[no]
        shared: Verdict | None = None
        for index in run.undecided_instances(no):
            if index != -1 and (stand_in := run.states[no].get(-1)) is not None:
                if stand_in in FINISHED:
                    run.decide(no, index, S.REMOVED)
                    found.decisions.append(Decision(no, S.REMOVED, "its task was not expanded again", index))
                else:
                    found.waiting[no, index] = "its task is expanded anew"
                continue
            if task.mapped_group is not None or shared is None:
                shared = run.verdict(no, task, index)
            if task.is_mapped and index < 0 and shared.state in {None, S.SCHEDULED}:
                if run.can_expand(no, task, shared):
                    found.expand.append(no)
                found.waiting[no, index] = "its instances are not known yet: " + shared.reason
            elif shared.state is None:
                found.waiting[no, index] = shared.reason
            else:
                run.decide(no, index, shared.state)
                found.decisions.append(Decision(no, shared.state, run.reason(no, task, index, shared), index))
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
    """A run while it is decided: its states, which decisions change. Looks only at what undecided tasks ask for."""

    def __init__(self, dag: SerializedDag, states: States, facts: Facts) -> None:
        self._dag = dag
        self.states = dict(states)
        #: Tasks of which `states` has a copy of our own.
        self._changed: dict[int, dict[int, S]] = {}
        #: States of tasks with many instances, counted once.
        self._counts: dict[int, Counter[S]] = {}
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

    def undecided(self) -> list[int]:
        """Tasks with an undecided instance, ascending: no decision makes another one undecided."""
        known = len(self._dag.tasks)
        return sorted(no for no, instances in self.states.items() if no < known and S.NONE in instances.values())

    def undecided_instances(self, no: int) -> list[int]:
        """Map indexes; first -1, which decides about the others."""
        found = [index for index, state in self.states[no].items() if state is S.NONE]
        return sorted(found, key=lambda index: index != -1) if -1 in self.states[no] and len(found) > 1 else found

    def decide(self, no: int, index: int, state: S) -> None:
        if no not in self._changed:
            self.states[no] = self._changed[no] = dict(self.states[no])
        self._changed[no][index] = state
        if no in self._counts:
            self._counts[no][S.NONE] -= 1
            self._counts[no][state] += 1

    def can_expand(self, no: int, task: SerializedTask, verdict: Verdict) -> bool:
        """Whether its instances can be made: at once where the DAG file says how many. Any other task may turn out to have none,
        which must not hide a failure above it; so it may run, and all that its expansion reads has ended. An earlier instance
        that is being stopped may have to be removed then, and cannot be before.
        """
        assert task.expand is not None
        if S.SHUTDOWN in self.states[no].values():
            return False
        if expansion.count(task.expand, {}):
            return True
        return verdict.state is S.SCHEDULED and all(
            state in FINISHED for no in self._sources(task) for state in self.states.get(no, {}).values()
        )

    def _sources(self, task: SerializedTask) -> list[int]:
        """The tasks whose results a mapped task is mapped over."""
        assert task.expand is not None
        return [self._dag.number[name] for name in expansion.sources(task.expand) if name in self._dag.number]

    def verdict(self, no: int, task: SerializedTask, index: int) -> Verdict:
        """What is to become of one undecided task instance, and why."""
        by = self._skips and (self._skips.get(task.task_id) or self._skips.get((task.task_id, index)))
        if by:
            return Verdict(S.SKIPPED, f"{by} decided to skip it")
        if not (self._dag.upstream[no] or task.setups or task.is_teardown):
            return self._not_before_past(no, task, ROOT)
        # Those directly above are upstream tasks like others: the trigger rule says what they mean.
        setups = self._upstream([self._dag.number[name] for name in task.indirect_setups], task, index)
        upstream = self._upstream(self._dag.upstream[no], task, index)
        if task.is_teardown:
            setups = self._upstream([self._dag.number[name] for name in task.setups], task, index)
            scope = self._upstream([self._dag.number[name] for name in task.scope], task, index)
            verdict = decide_teardown(upstream, scope, setups)
        elif task.trigger_rule == "always":
            verdict = decide(task.trigger_rule, upstream)
        else:
            verdict = needs_setups(setups) or decide(task.trigger_rule, upstream)
        if task.expand is not None:
            verdict = _worst(verdict, needs_sources(self._upstream_unexpanded(self._sources(task))))
        return self._not_before_past(no, task, verdict)

    def reason(self, no: int, task: SerializedTask, index: int, verdict: Verdict) -> str:
        """Why, with the tasks above by name whose states are the reason."""
        if not verdict.states:
            return verdict.reason
        above = [*self._dag.upstream[no], *(self._dag.number[name] for name in task.indirect_setups)]
        above += self._sources(task) if task.expand is not None else []
        found = (name for one in dict.fromkeys(above) for name in self._named(one, task, index, verdict.states))
        return verdict.naming(list(islice(found, MOST_NAMES)))

    def _named(self, above: int, task: SerializedTask, index: int, states: Collection[S]) -> Iterator[str]:
        """The relevant instances of a task that are in one of these states."""
        other = self._dag.tasks[above]
        instances = self.states.get(above, {})
        peers = index >= 0 and task.mapped_group is not None and task.mapped_group == other.mapped_group
        for at, state in instances.items():
            if state in states and (at < 0 or (-1 not in instances and (not peers or at == index))):
                yield other.task_id if at < 0 else f"{other.task_id}[{at}]"

    def _not_before_past(self, no: int, task: SerializedTask, verdict: Verdict) -> Verdict:
        waits = self._past.get(no)
        if waits and (verdict.state is S.SCHEDULED or (verdict.state is S.SKIPPED and task.wait_for_past_depends_before_skipping)):
            return Verdict(None, waits)
        return verdict

    def _upstream(self, above: Sequence[int], task: SerializedTask, index: int) -> Upstream:
        """Counts of the relevant instances: one of each task of the same mapped group, all of any other.

        A task of a mapped group that is not expanded yet has none in the expanded tasks of its group: each of its instances will
        look at its own. Only a rule that one upstream task can meet counts them all, as in Airflow.
        """
        if not above:
            return NONE_ABOVE
        total: defaultdict[S, int] = defaultdict(int)
        group = None if index < 0 and task.trigger_rule in FAST_RULES else task.mapped_group
        for no in above:
            instances = self.states.get(no)
            if instances is None:
                continue
            if -1 in instances:  # not mapped, or not expanded (again) yet
                total[instances[-1]] += 1
            elif group is not None and self._dag.tasks[no].mapped_group == group:
                if index in instances:
                    total[instances[index]] += 1
            elif len(instances) == 1:
                total[next(iter(instances.values()))] += 1
            else:
                for state, count in self._counted(no).items():
                    total[state] += count
        return Upstream.counted(total)

    def _upstream_unexpanded(self, above: Sequence[int]) -> Upstream:
        """Counts of those of these tasks that are not mapped, or ended before they were expanded."""
        return Upstream.of(self.states[no][-1] for no in above if -1 in self.states.get(no, {}))

    def _counted(self, no: int) -> Counter[S]:
        if no not in self._counts:
            self._counts[no] = Counter(self.states[no].values())
        return self._counts[no]


def _worst(one: Verdict, other: Verdict | None) -> Verdict:
    """The verdict of two that both must agree to: a failure before a skip, a skip before all else."""
    if other is None or one.state is S.UPSTREAM_FAILED:
        return one
    return other if other.state is S.UPSTREAM_FAILED or one.state is not S.SKIPPED else one
