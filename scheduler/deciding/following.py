"""The tasks that may be queued when a try ends, as far as its worker can decide it: pure, and O(direct downstream tasks).

1. `plan_of` sorts the direct downstream tasks: those that this one state settles, whatever the others do; joins, which
   depend on their other upstream tasks too; and those left to the scheduler, which need more than the states of their direct
   upstream tasks (SerializedDag.followed).
2. A join with an upstream task that no worker has cannot be ready. The report detects that, and takes no lock for it.
3. If another join may be ready, the report stores nothing. The joins are locked in ID order and decided by `decide_joins`, so two
   last siblings never both treat the other as unfinished.
4. An upstream task that no worker had in 2. can start and end before the report is stored. So a report that may be the last one
   checks the tasks that it left undecided again once it is stored (`undecided`).
5. `moves_of` chooses the successor: the one ready task that may get the slots of the ended one.

Following never oversubscribes a pool, since the successor needs no more slots than its predecessor gives back. It never starves
another DAG, since the report passes the slots to no task instance that another waiting one outranks.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from scheduler.deciding.rules import Upstream, Verdict, decide, settled_by
from scheduler.serialized.dag import SerializedDag
from scheduler.states import FINISHED, Decision, TaskState


class Ended(Protocol):
    """The task instance whose try has ended."""

    @property
    def task_no(self) -> int: ...
    @property
    def task_id(self) -> str: ...
    @property
    def map_index(self) -> int: ...
    @property
    def pool(self) -> str: ...
    @property
    def pool_slots(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The direct downstream tasks of one ended try, by how they are decided.

    All upstream tasks of a peer join are in its mapped group, so only instances with its own map index count.
    """

    settled: list[Decision] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)
    peer_joins: list[int] = field(default_factory=list)
    #: Left to the scheduler.
    left: list[int] = field(default_factory=list)
    #: Whether the scheduler has to examine the run in any case.
    needs_scheduler: bool = False
    #: Whether the slots may go to another task instance.
    passes_slots: bool = True

    @property
    def affected(self) -> list[int]:
        """The tasks that may be moved under locks."""
        return [*self.joins, *self.peer_joins, *(decision.task_no for decision in self.settled)]

    def without(self, waiting: Collection[int]) -> "Plan":
        """The plan without the tasks that wait for one that no worker has. The end of that one will decide them."""
        return replace(
            self,
            joins=[join for join in self.joins if join not in waiting],
            left=[no for no in self.left if no not in waiting],
        )


@dataclass(frozen=True, slots=True)
class Ranges:
    """Tasks with their upstream tasks as inclusive ranges of numbers: one element of each list a range."""

    tasks: list[int] = field(default_factory=list)
    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)

    @classmethod
    def above(cls, dag: SerializedDag, tasks: Sequence[int]) -> "Ranges":
        """The upstream tasks of each of `tasks`."""
        ranges = cls()
        for no in tasks:
            for low, high in dag.upstream_ranges[no]:
                ranges.tasks.append(no)
                ranges.lows.append(low)
                ranges.highs.append(high)
        return ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The moves to store together with a report; `successor` is the place in `decisions` of the one that gets the slots.

    `dispatch_id` is that of the task instance that gets them, the successor or the next one waiting; None passes them to none.
    """

    decisions: Sequence[Decision] = ()
    successor: int | None = None
    dispatch_id: str | None = None
    #: Numbers of tasks that some branch may skip.
    below_branch: Collection[int] = frozenset()
    #: The dispatch ID of the task instance that gets the slots, if it may run in place: in the process that reports.
    in_place_id: str | None = None
    #: Whether that may be the next one waiting, not only the successor.
    line_in_place: bool = False
    #: Nothing is stored if one of these has all its upstream tasks with a worker: it may be ready, and is decided under locks.
    joins: Sequence[int] = ()
    #: The tasks of which the report finds out whether they wait for one that no worker has.
    asked: Ranges = field(default_factory=Ranges)


def plan_of(
    dag: SerializedDag, ended: Ended, state: TaskState, skip: Collection[str] | None = None, *, enabled: bool = True
) -> Plan:
    """Sort the tasks below a try that ended in `state` and decided to skip the tasks `skip`. Not `enabled`: none is moved."""
    # The run moved to a newer version, which has fewer tasks than the version the task was queued from.
    if not enabled or ended.task_no >= len(dag.tasks) or (dag.fail_fast and state is TaskState.FAILED):
        return Plan(needs_scheduler=True, passes_slots=False)
    if state not in FINISHED:
        return Plan(needs_scheduler=True)
    task, skip = dag.tasks[ended.task_no], skip or ()
    # The next iteration of a loop is not downstream of the one before.
    plan = Plan(needs_scheduler=task.loop_gate is not None)
    for no in dag.downstream[ended.task_no]:
        below = dag.tasks[no]
        peers = below.mapped_group is not None and below.mapped_group == task.mapped_group
        if below.task_id in skip:
            continue
        if no not in dag.followed:
            plan.left.append(no)
            continue
        alone = len(dag.upstream[no]) == 1 and (peers or ended.task_no not in dag.mapped)
        verdict = settled_by(below.trigger_rule, state, alone=alone)
        if verdict.state is not None:
            plan.settled.append(Decision(no, verdict.state, _reason(verdict, ended, state), ended.map_index if peers else -1))
        elif not alone:
            (plan.peer_joins if peers else plan.joins).append(no)
    for no in sorted(dag.number[task_id] for task_id in skip if task_id in dag.number):
        peers = dag.tasks[no].mapped_group is not None and dag.tasks[no].mapped_group == task.mapped_group
        reason = f"{ended.task_id} decided to skip it"
        plan.settled.append(Decision(no, TaskState.SKIPPED, reason, ended.map_index if peers else -1))
    return plan


def decide_joins(
    dag: SerializedDag,
    ended: Ended,
    state: TaskState,
    plan: Plan,
    *,
    upstream: Mapping[int, Counter[TaskState]],
    peers: Mapping[int, TaskState],
) -> Plan:
    """The moves that are settled now that the joins of `plan` are locked.

    `upstream` has the states of the other upstream task instances of each join, `peers` those of its mapped group.
    """
    decisions = list(plan.settled)
    counts = {join: upstream[join] + Counter({state: 1}) for join in plan.joins}
    known = {**peers, ended.task_no: state}
    for join in plan.peer_joins:
        counts[join] = Counter(known[no] for no in dag.upstream[join] if no in known)
    for join, states in counts.items():
        verdict = decide(dag.tasks[join].trigger_rule, Upstream.counted(states))
        if verdict.state is not None:
            map_index = ended.map_index if join in plan.peer_joins else -1
            decisions.append(Decision(join, verdict.state, _reason(verdict, ended, state), map_index))
    return Plan(settled=decisions, needs_scheduler=plan.needs_scheduler)


def moves_of(dag: SerializedDag, ended: Ended, plan: Plan, dispatch_id: str, in_place_id: str | None = None) -> Moves:
    """The moves to store together with the report; the dispatch IDs are for the task instance that gets the slots."""
    decisions = sorted(plan.settled, key=lambda decision: decision.task_no)
    asked = [*plan.joins, *plan.left] if plan.joins or plan.left else ()
    successor = choose_successor(dag, ended, decisions)
    line_in_place = len(dag.in_place) == len(dag.tasks)
    in_place = line_in_place or (successor is not None and decisions[successor].task_no in dag.in_place)
    return Moves(
        decisions=decisions,
        successor=successor,
        dispatch_id=dispatch_id if plan.passes_slots else None,
        in_place_id=in_place_id if plan.passes_slots and in_place else None,
        line_in_place=line_in_place,
        below_branch=dag.below_branch,
        joins=plan.joins,
        asked=Ranges.above(dag, asked) if asked else Ranges(),
    )


def undecided(dag: SerializedDag, plan: Plan, moved: Collection[int]) -> list[int]:
    """The tasks below that a report left undecided, although no other report may come that decides them.

    `moved` are the numbers of the tasks whose instances it moved. The ends of these are reported later.
    """
    later = sorted(moved)

    def comes_later(low: int, high: int) -> bool:
        at = bisect_left(later, low)
        return at < len(later) and later[at] <= high

    return [
        no
        for no in (*plan.joins, *plan.left)
        if no not in moved and not any(comes_later(low, high) for low, high in dag.upstream_ranges[no])
    ]


def choose_successor(dag: SerializedDag, ended: Ended, decisions: Sequence[Decision]) -> int | None:
    """The place in `decisions` of the best ranked ready task that fits into the slots of the ended one.

    A task with a limit over its own instances never fits: the others are not counted here.
    """
    fitting = [
        place
        for place, decision in enumerate(decisions)
        if decision.state is TaskState.SCHEDULED
        and dag.tasks[decision.task_no].pool == ended.pool
        and dag.tasks[decision.task_no].pool_slots <= ended.pool_slots
        and decision.task_no not in dag.limited
    ]
    return min(fitting, key=lambda at: (-dag.tasks[decisions[at].task_no].priority_weight, at), default=None)


def _reason(verdict: Verdict, ended: Ended, state: TaskState) -> str:
    """Of the upstream tasks only the one that ended is known by name."""
    if state not in verdict.states:
        return verdict.reason
    return verdict.naming([ended.task_id if ended.map_index < 0 else f"{ended.task_id}[{ended.map_index}]"])
