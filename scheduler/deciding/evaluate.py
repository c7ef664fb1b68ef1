"""Decides the next states of the task instances of a run, each with a reason. Pure. One pass reaches the fixpoint.

After a person or a timeout has ended the other tasks of a run, a teardown still runs if one of its setups succeeded, no matter what
ended the tasks between the two.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from paceline.states import FAILURES, FINISHED, STARTED, SUSPENDED, Branched, Decision, RunState
from paceline.states import TaskState as S
from scheduler.deciding import expansion
from scheduler.deciding.rules import MOST_NAMES, Upstream, Verdict, below_setups, decide, decide_teardown, needs_sources
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask

#: States by task number and map index (-1: not mapped, or not expanded yet). Missing instances do not exist in this run.
States = Mapping[int, Mapping[int, S]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The inputs of the decisions besides the states of the run."""

    branched: tuple[Branched, ...] = ()
    #: Why a task still waits for the previous run, by task number. See rules.past_waits.
    past: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The decisions to apply, the mapped tasks that can be expanded, and why the other task instances wait."""

    decisions: list[Decision]
    expand: list[int]
    waiting: dict[tuple[int, int], str]

    def waits_for_past(self, facts: Facts) -> bool:
        """Whether a task instance waits for the previous run."""
        return any(no in facts.past for no, _ in self.waiting)


NO_FACTS = Facts()
#: Rules that a few upstream task instances can decide.
FAST_RULES = frozenset({"one_success", "one_failed", "one_done", "none_failed_min_one_success"})
NONE_ABOVE = Upstream(total=0)
ROOT = decide("all_success", NONE_ABOVE)


def evaluate(dag: SerializedDag, states: States, facts: Facts = NO_FACTS) -> Evaluation:
    """Decide all undecided task instances of a run.

    Tasks are numbered in topological order, so one pass propagates skips and failures to all downstream tasks.
    """
    run = _Run(dag, states, facts)
    evaluation = Evaluation([], [], {})
    _pass(run, dag, evaluation)
    # The end of an iteration decides about the next one, whose tasks come before it in the order.
    decided = 0
    while dag.has_loops and len(evaluation.decisions) > decided:
        decided = len(evaluation.decisions)
        _pass(run, dag, evaluation)
    return evaluation


def _pass(run: "_Run", dag: SerializedDag, evaluation: Evaluation) -> None:
    """Decide what can be decided, in topological order."""
    evaluation.waiting.clear()
    evaluation.expand.clear()
    for no in run.undecided():
        task = dag.tasks[no]
        shared: Verdict | None = None
        for index in run.undecided_instances(no):
            if index != -1 and (stand_in := run.states[no].get(-1)) is not None:
                if stand_in in FINISHED:
                    run.decide(no, index, S.REMOVED)
                    evaluation.decisions.append(Decision(no, S.REMOVED, "its task was not expanded again", index))
                else:
                    evaluation.waiting[no, index] = "its task is expanded again"
                continue
            if task.mapped_group is not None or shared is None:
                shared = run.verdict(no, task, index)
            if task.is_mapped and index < 0 and shared.state in {None, S.SCHEDULED}:
                if run.can_expand(no, task, shared):
                    evaluation.expand.append(no)
                evaluation.waiting[no, index] = "its instances are not known yet: " + shared.reason
            elif shared.state is None:
                evaluation.waiting[no, index] = shared.reason
            else:
                run.decide(no, index, shared.state)
                evaluation.decisions.append(Decision(no, shared.state, run.reason(no, task, index, shared), index))


#: The most tasks of a run that its creator decides: these take it less than a millisecond.
FEW_TASKS = 100


def first_decisions(dag: SerializedDag, task_nos: Collection[int]) -> Sequence[Decision]:
    """The tasks of a new run that are ready, highest rank first; none if a scheduler must decide the run, or if it is large."""
    if not dag.is_plain or len(task_nos) > FEW_TASKS:
        return []
    decisions = evaluate(dag, {no: {-1: S.NONE} for no in task_nos}).decisions
    if any(decision.state is not S.SCHEDULED for decision in decisions):
        return []
    return sorted(decisions, key=lambda decision: (-dag.tasks[decision.task_no].priority_weight, decision.task_no))


def run_state(
    dag: SerializedDag, states: States, waiting_for_past: bool = False, requested: RunState | None = None
) -> RunState | None:
    """Return the final state of a run: failed if a leaf task failed, success otherwise. None while the run continues.

    A run fails ("deadlock") if nothing is active and nothing can be decided any more, unless it waits for an earlier run.
    A run that was ended early gets the state `requested`, unless a teardown with on_failure_fail_dagrun fails.
    """
    open_states = {state for instances in states.values() for state in instances.values()} - FINISHED
    if open_states == {S.NONE} and not waiting_for_past:
        evaluation = evaluate(dag, states)
        return None if evaluation.decisions or evaluation.expand else RunState.FAILED
    if open_states:
        return None
    if requested is not None:
        strict = (no for no, task in enumerate(dag.tasks) if task.on_failure_fail_dagrun)
        return RunState.FAILED if any(S.FAILED in states.get(no, {}).values() for no in strict) else requested
    ended = {state for no in dag.leaves for state in states.get(no, {}).values()}
    return RunState.FAILED if ended & FAILURES else RunState.SUCCESS


class _Run:
    """A run during its evaluation. Decisions change its states. Only the states that undecided tasks depend on are read."""

    def __init__(self, dag: SerializedDag, states: States, facts: Facts) -> None:
        self._dag = dag
        self.states = dict(states)
        #: Tasks whose instances in `states` are copies that may be changed.
        self._changed: dict[int, dict[int, S]] = {}
        #: Cached counts of the states of tasks with many instances.
        self._counts: dict[int, Counter[S]] = {}
        self._past = facts.past
        #: The branch that skips a task: all its instances, or one instance if both are in the same mapped group.
        self._skips: dict[str | tuple[str, int], str] = {}
        #: The iteration with which each loop ended, by its gate.
        self._stopped: dict[str, int] = {}
        for branched in facts.branched:
            if branched.task_no >= len(dag.tasks):
                continue  # the run moved to a newer version without this task while it ran
            branch = dag.tasks[branched.task_no]
            if branched.LOOP_STOP in branched.skip:
                self._stopped[branch.task_id] = min(branched.map_index, self._stopped.get(branch.task_id, branched.map_index))
            for task_id in branched.skip & dag.number.keys():
                group = dag.tasks[dag.number[task_id]].mapped_group
                same_group = group is not None and group == branch.mapped_group
                self._skips[(task_id, branched.map_index) if same_group else task_id] = branch.task_id

    def undecided(self) -> list[int]:
        """Return the tasks with undecided instances, ascending. No decision makes another instance undecided."""
        known = len(self._dag.tasks)
        return sorted(no for no, instances in self.states.items() if no < known and S.NONE in instances.values())

    def undecided_instances(self, no: int) -> list[int]:
        """Return the map indexes of undecided instances. -1 comes first, because it decides about the others."""
        indexes = [index for index, state in self.states[no].items() if state is S.NONE]
        return sorted(indexes, key=lambda index: index != -1) if -1 in self.states[no] and len(indexes) > 1 else indexes

    def decide(self, no: int, index: int, state: S) -> None:
        if no not in self._changed:
            self.states[no] = self._changed[no] = dict(self.states[no])
        self._changed[no][index] = state
        if no in self._counts:
            self._counts[no][S.NONE] -= 1
            self._counts[no][state] += 1

    def can_expand(self, no: int, task: SerializedTask, verdict: Verdict) -> bool:
        """Whether the instances of a mapped task can be created.

        If the DAG file has their number, they can be created at once. Any other task may have no instances, which must not hide an
        upstream failure. So its trigger rule must be met, and all tasks that its expansion reads must have ended. An earlier
        instance that is still being stopped must end first, because the expansion may remove it.
        """
        assert task.expand is not None
        if S.SHUTDOWN in self.states[no].values():
            return False
        if expansion.count(task.expand, {}):
            return True
        return verdict.state is S.SCHEDULED and all(
            state in FINISHED for source in self._sources(task) for state in self.states.get(source, {}).values()
        )

    def _sources(self, task: SerializedTask) -> list[int]:
        """Return the tasks whose results a mapped task is mapped over."""
        assert task.expand is not None
        return [self._dag.number[name] for name in expansion.sources(task.expand) if name in self._dag.number]

    def verdict(self, no: int, task: SerializedTask, index: int) -> Verdict:
        """Return the verdict on an undecided task instance."""
        branch = self._skips and (self._skips.get(task.task_id) or self._skips.get((task.task_id, index)))
        if branch:
            return Verdict(S.SKIPPED, f"{branch} decided to skip it")
        if task.loop_gate is not None and index >= 0 and (verdict := self._iteration(task.loop_gate, index)) is not None:
            return verdict
        if not (self._dag.upstream[no] or task.setups or task.is_teardown):
            return self._not_before_past(no, task, ROOT)
        # Direct setups are ordinary upstream tasks, which the trigger rule covers.
        setups = self._upstream([self._dag.number[name] for name in task.indirect_setups], task, index)
        upstream = self._upstream(self._dag.upstream[no], task, index)
        if task.is_teardown:
            setups = self._upstream([self._dag.number[name] for name in task.setups], task, index)
            scope = self._upstream([self._dag.number[name] for name in task.scope], task, index)
            verdict = decide_teardown(upstream, scope, setups)
        elif task.trigger_rule == "always":
            verdict = decide(task.trigger_rule, upstream)
        else:
            verdict = below_setups(setups, decide(task.trigger_rule, upstream))
        if task.expand is not None:
            verdict = _worst(verdict, needs_sources(self._upstream_unexpanded(self._sources(task))))
        return self._not_before_past(no, task, verdict)

    def _iteration(self, gate: str, index: int) -> Verdict | None:
        """Return the verdict of the iterations before on the tasks of this one; None if it may run."""
        if self._stopped.get(gate, index) < index:
            return Verdict(S.REMOVED, f"the loop ended with iteration {self._stopped[gate] + 1}")
        before = self.states.get(self._dag.number[gate], {}).get(index - 1) if index else S.SUCCESS
        if before is S.SUCCESS:
            return None
        if before in FAILURES or before is S.SKIPPED:
            state = S.SKIPPED if before is S.SKIPPED else S.UPSTREAM_FAILED
            return Verdict(state, f"iteration {index} of the loop did not succeed")
        return Verdict(None, f"iteration {index} of the loop has not ended")

    def reason(self, no: int, task: SerializedTask, index: int, verdict: Verdict) -> str:
        """Return the reason of a verdict, with the names of the upstream tasks that caused it."""
        if not verdict.states:
            return verdict.reason
        above = [*self._dag.upstream[no], *(self._dag.number[name] for name in task.indirect_setups)]
        above += self._sources(task) if task.expand is not None else []
        names = (name for upstream_no in dict.fromkeys(above) for name in self._named(upstream_no, task, index, verdict.states))
        return verdict.naming(list(islice(names, MOST_NAMES)))

    def _named(self, above: int, task: SerializedTask, index: int, states: Collection[S]) -> Iterator[str]:
        """Yield the names of the relevant instances of a task that are in one of these states."""
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
        """Count the states of the relevant instances: one of each task in the same mapped group, all of any other task.

        A task of a mapped group that is not expanded yet has no relevant instance in the expanded tasks of its group, because each
        of its instances will depend on its own. As in Airflow, only a rule that one upstream task can meet counts them all.
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
        """Count the states of the tasks that are not mapped, or ended before they were expanded."""
        return Upstream.of(self.states[no][-1] for no in above if -1 in self.states.get(no, {}))

    def _counted(self, no: int) -> Counter[S]:
        if no not in self._counts:
            self._counts[no] = Counter(self.states[no].values())
        return self._counts[no]


def _worst(verdict: Verdict, other: Verdict | None) -> Verdict:
    """Combine two verdicts: a failure has precedence over a skip, and a skip over all others."""
    if other is None or verdict.state is S.UPSTREAM_FAILED:
        return verdict
    return other if other.state is S.UPSTREAM_FAILED or verdict.state is not S.SKIPPED else verdict


#: A setup in one of these may have made what its teardown removes.
MAY_HAVE_MADE = STARTED | SUSPENDED | {S.UP_FOR_RETRY}
#: The task number and the map index of a task instance.
Place = tuple[int, int]


def still_to_run(dag: SerializedDag, states: States, ended: Mapping[Place, S]) -> frozenset[Place]:
    """The unfinished teardowns in `ended` that are to run, if all others in it get the state that it names.

    `states` are those before. A setup that has succeeded counts as such; one that has made nothing counts as skipped, even if
    it is marked success.
    """
    kept = {
        (no, index)
        for no, index in ended
        if no < len(dag.tasks) and dag.tasks[no].is_teardown and states[no][index] not in FINISHED
    }
    if not kept:
        return frozenset()
    after = {no: dict(of_task) for no, of_task in states.items()}
    for (no, index), state in ended.items():
        if (no, index) not in kept:
            before = states[no][index]
            is_setup = no < len(dag.tasks) and dag.tasks[no].is_setup
            if not (is_setup and before is S.SUCCESS):
                after[no][index] = S.SKIPPED if is_setup and before not in MAY_HAVE_MADE else state
    runs = {(no, index) for no, index in kept if after[no][index] is not S.NONE}
    # An outer teardown is decided after the inner ones, so let each round end the teardowns that it decides.
    while decisions := evaluate(dag, after).decisions:
        for one in decisions:
            place = (one.task_no, one.map_index)
            is_ready = one.state is S.SCHEDULED
            after[one.task_no][one.map_index] = S.SUCCESS if is_ready and place in kept else one.state
            if is_ready and place in kept:
                runs.add(place)
    undecided = {(no, index) for no, index in kept if after[no][index] is S.NONE}
    return frozenset(runs | undecided)
