"""The tasks that may be queued when a try ends, as far as its worker can decide it: pure, and O(direct downstream tasks).

1. `plan_of` decides the direct downstream tasks that this one state settles, whatever the others do. The rest are joins, which
   depend on their other upstream tasks too, and tasks left to the scheduler, which need more than the states of their direct
   upstream tasks (SerializedDag.followed).
2. A join with an upstream task that no worker has cannot be ready. The report detects that, and takes no lock for it.
3. If another join may be ready, the report stores nothing. The joins are locked in ID order, and `plan_of` plans again from the
   states of their upstream tasks, so two last siblings never both treat the other as unfinished.
4. Between step 2 and the commit, such an upstream task can start and end. So a report that may be the last re-checks its
   undecided tasks after the commit (`undecided`).

The successor is the one ready task that may get the slots of the ended one (`choose_successor`). Following never oversubscribes a
pool, since the successor needs no more slots than its predecessor gives back. It never starves another DAG, since the report passes
the slots to no task instance that another waiting one outranks.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.states import FINISHED, Decision, TaskState
from scheduler.deciding.rules import Upstream, Verdict, decide, settled_by
from scheduler.serialized.dag import SerializedDag


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

    def of(self, tasks: Collection[int]) -> "Ranges":
        """The ranges of these tasks only."""
        ranges = [each for each in zip(self.tasks, self.lows, self.highs, strict=True) if each[0] in tasks]
        return Ranges(*(list(column) for column in zip(*ranges, strict=True)))


NO_RANGES = Ranges()


@dataclass(frozen=True, slots=True)
class JoinStates:
    """The states around joins while they are locked."""

    #: By join, how many of its other upstream task instances are in each state. A join that cannot be ready is missing.
    upstream: Mapping[int, Counter[TaskState]]
    #: By task number, the states of the instances of the same mapped group with the same map index.
    peers: Mapping[int, TaskState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The moves to store together with the report of an ended try, and the direct downstream tasks that it leaves undecided.

    All upstream tasks of a peer join are in its mapped group, so only instances with its own map index count.
    """

    #: By task number.
    settled: Sequence[Decision] = ()
    #: The place in `settled` of the task that gets the slots.
    successor: int | None = None
    #: Nothing is stored if one of these has all its upstream tasks with a worker: it may be ready, and is decided under locks.
    joins: list[int] = field(default_factory=list)
    peer_joins: list[int] = field(default_factory=list)
    #: The upstream tasks of all peer joins.
    peers: Collection[int] = frozenset()
    #: Left to the scheduler.
    left: list[int] = field(default_factory=list)
    #: Whether the scheduler has to examine the run in any case.
    needs_scheduler: bool = False
    #: Whether the slots may go to another task instance: the successor, or the next one waiting.
    passes_slots: bool = True
    #: Whether the task instance that gets the slots may run in place: in the process that reports.
    in_place: bool = False
    #: Whether that may be the next one waiting, not only the successor.
    line_in_place: bool = False
    #: Numbers of tasks that some branch may skip.
    below_branch: Collection[int] = frozenset()
    #: The tasks of which the report finds out whether they wait for one that no worker has.
    asked: Ranges = NO_RANGES
    #: Whether the one move is that of the successor, and nothing else depends on this end, as in most of a pipeline.
    is_step: bool = False


#: Of a report that moves nothing: the scheduler decides every downstream task.
NO_MOVES = Plan(needs_scheduler=True, passes_slots=False)


def plan_of(
    dag: SerializedDag, ended: Ended, state: TaskState, skip: Collection[str] | None = None, states: JoinStates | None = None
) -> Plan:
    """Plan what follows a try that ended in `state` and decided to skip the tasks `skip`.

    With `states` the joins are locked: they are decided or wait, and nothing is left to ask about.
    """
    # The run moved to a newer version, which has fewer tasks than the version the task was queued from.
    if ended.task_no >= len(dag.tasks) or (dag.fail_fast and state is TaskState.FAILED):
        return NO_MOVES
    settled: list[Decision] = []
    joins: list[int] = []
    peer_joins: list[int] = []
    left: list[int] = []
    name = ended.task_id if ended.map_index < 0 else f"{ended.task_id}[{ended.map_index}]"
    if state in FINISHED:
        for no in dag.downstream[ended.task_no]:
            if skip and dag.tasks[no].task_id in skip:
                continue
            if no not in dag.followed:
                left.append(no)
                continue
            peers = _are_peers(dag, ended, no)
            verdict = _verdict(dag, ended, no, state, states, peers=peers)
            if verdict is None:
                (peer_joins if peers else joins).append(no)
            elif verdict.state is not None:
                # Of the upstream tasks, only the one that ended is known by name.
                reason = verdict.naming([name]) if state in verdict.states else verdict.reason
                settled.append(Decision(no, verdict.state, reason, ended.map_index if peers else -1))
        if skip:
            settled += _skips(dag, ended, skip)
        settled.sort(key=lambda decision: decision.task_no)
    successor = choose_successor(dag, ended, settled)
    line_in_place = len(dag.in_place) == len(dag.tasks)
    return Plan(
        settled=settled,
        successor=successor,
        joins=joins,
        peer_joins=peer_joins,
        peers={above for join in peer_joins for above in dag.upstream[join]},
        left=left,
        asked=Ranges.above(dag, [*joins, *left]) if states is None else NO_RANGES,
        # The next iteration of a loop is not downstream of the one before.
        needs_scheduler=state not in FINISHED or dag.tasks[ended.task_no].loop_gate is not None,
        in_place=line_in_place or (successor is not None and settled[successor].task_no in dag.in_place),
        line_in_place=line_in_place,
        below_branch=dag.below_branch,
        is_step=successor is not None and len(settled) == 1 and not (joins or left or peer_joins),
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


def _verdict(
    dag: SerializedDag, ended: Ended, no: int, state: TaskState, states: JoinStates | None, *, peers: bool
) -> Verdict | None:
    """The verdict on the direct downstream task `no`; None for a join, which needs the states of other upstream tasks."""
    rule = dag.tasks[no].trigger_rule
    alone = len(dag.upstream[no]) == 1 and (peers or ended.task_no not in dag.mapped)
    verdict = settled_by(rule, state, alone=alone)
    if alone or verdict.state is not None:
        return verdict
    if states is None:
        return None
    if not peers:
        others = states.upstream.get(no)
        return verdict if others is None else decide(rule, Upstream.counted(others + Counter({state: 1})))
    known = {**states.peers, ended.task_no: state}
    return decide(rule, Upstream.of(known[above] for above in dag.upstream[no] if above in known))


def _are_peers(dag: SerializedDag, ended: Ended, no: int) -> bool:
    """Whether the task `no` is in the mapped group of the ended one, so that instances follow those of their own map index."""
    group = dag.tasks[no].mapped_group
    return group is not None and group == dag.tasks[ended.task_no].mapped_group


def _skips(dag: SerializedDag, ended: Ended, skip: Collection[str]) -> list[Decision]:
    reason = f"{ended.task_id} decided to skip it"
    numbers = sorted(dag.number[task_id] for task_id in skip if task_id in dag.number)
    return [Decision(no, TaskState.SKIPPED, reason, ended.map_index if _are_peers(dag, ended, no) else -1) for no in numbers]
