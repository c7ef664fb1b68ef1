"""What a finished task may queue next. Workers call it; it costs O(direct downstream tasks) whatever the size of the DAG.

1. Verdicts that this one result settles (a single upstream task, a failure under all_success) need no look at anybody else.
2. A join whose other upstream tasks are not all with a worker cannot be ready: one index probe in the report says so, no lock is
   taken.
3. Else that report stores nothing: the joins are locked in id order and decided from what their upstream tasks are now.
4. The report, the verdicts and whoever gets the slots are one transaction: at most one heir below, which goes straight to
   queued, or else the first in line of the pool, if it waits for nothing but these slots.
5. After the commit the message of that one is sent; what else became ready rings the doorbell.

Following never oversubscribes a pool (who gets the slots takes no more than its predecessor gives back), and never starves
another DAG (nobody is passed over: a waiting task instance that outranks the heir sends it to the back of the line, and one
that may not have the slots keeps those behind it from getting them). Tasks that ask for more than the states of this run's
direct upstream tasks (SerializedDag.follows) are left to the scheduler: a ring wakes it.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from scheduler.deciding.rules import Upstream, Verdict, decide
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import PUBLISH_ERRORS, Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.serialized.dag import SerializedDag
from scheduler.states import FINISHED, Decision, TaskState
from scheduler.store.db import sqlstates
from scheduler.store.worker.claims import Claim, Ending, Moved, Moves, Reported, Undecided
from scheduler.store.worker.hot_path import HotPath

log = logging.getLogger("paceline.worker")

#: How a dispatch ends whose try goes on.
SUSPENDED = frozenset({TaskState.UP_FOR_RESCHEDULE, TaskState.DEFERRED})
#: Seconds; what is due later than this is found by the scheduler's poll.
SOON_S = 1.0
#: More upstream task instances than any task has: only what is decided "at once" is decided under it.
MANY = 2**31


@dataclass(slots=True)
class Below:
    """The direct downstream tasks of one ending: what it settles, the joins to look at, and what is left to the scheduler.

    A join of peers has all its upstream tasks in the same mapped group, so only instances of one map index count.
    """

    settled: list[Decision] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)
    peer_joins: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)

    def all(self) -> list[int]:
        """What may be moved: it is locked at once, in id order."""
        return [*self.joins, *self.peer_joins, *(one.task_no for one in self.settled)]


class Follower:
    """Reports for one pool child and sends what follows.

    Below `report` everything may raise: psycopg2.Error that passes means to ask again, see scheduler/store/sqlstates.
    """

    def __init__(self, hot: HotPath, publisher: Publisher, wakeups: Wakeups, *, enabled: bool, aging: bool = False) -> None:
        self._hot = hot
        self._publisher = publisher
        self._wakeups = wakeups
        self._enabled = enabled
        self._aging = aging

    def report(self, claim: Claim, ending: Ending) -> bool:
        """Store the ending and follow; False if the task instance is no longer this dispatch's.

        How a task ended does not depend on what comes after it: whatever goes wrong there, the ending is stored alone, and the
        scheduler follows.
        """
        try:
            return self._report(claim, ending)
        except Exception as error:
            if sqlstates.is_passing(error):
                raise
            log.exception("following failed below %s.%s (run %s): the scheduler follows", claim.dag_id, claim.task_id, claim.run_id)
            self._hot.close()
            return self._report_alone(claim, ending)

    def _report_alone(self, claim: Claim, ending: Ending) -> bool:
        """Store the ending, decide nothing, and have a scheduler look at the run and at whatever such an ending may move."""
        if ending.state in SUSPENDED:
            accepted = self._hot.suspend(claim, ending) is not None
        else:
            accepted = self._hot.report(claim, ending, Moves()) is not None
        accepted = accepted or self._hot.ended_as(claim, ending.state)
        if accepted:
            self._wakeups.wake("queue", f"run:{claim.dag_run_id}", f"next:{claim.dag_run_id}", "notify", "plan")
            if ending.deferral is not None:
                self._wakeups.wake_waiters()
        return accepted

    def _report(self, claim: Claim, ending: Ending) -> bool:
        if ending.state in SUSPENDED:
            return self._suspend(claim, ending)
        dag = self._hot.dag(claim.version_id)
        gone = claim.task_no >= len(dag.tasks)  # its task, in the version that its run goes on with
        over = gone or not self._enabled or (dag.fail_fast and ending.state is TaskState.FAILED)
        if over or ending.state not in FINISHED:
            moves = moves_of(dag, claim, (), hand_on=not over)
            return self._send(claim, ending, dag, self._hot.report(claim, ending, moves, aging=self._aging), left=True)
        below = settle(dag, claim, ending)
        if below.peer_joins:
            waiting = self._hot.unstarted(claim.dag_run_id, [*below.joins, *below.left], dag)
        else:
            moves = moves_of(dag, claim, below.settled, joins=below.joins, left=below.left)
            reported = self._hot.report(claim, ending, moves, dag, aging=self._aging)
            if not isinstance(reported, Undecided):
                left = reported is not None and not reported.waiting.issuperset(below.left)
                return self._send(claim, ending, dag, reported, left=left)
            waiting = reported.waiting
        below.joins = [join for join in below.joins if join not in waiting]
        return self._decide(claim, ending, dag, below, left=not waiting.issuperset(below.left))

    def obey(self, claim: Claim) -> bool:
        """The user code was stopped because somebody asked for it: do what was asked. False if nobody did."""
        obeyed = self._hot.obey(claim)
        if obeyed:
            self._wakeups.wake(f"run:{claim.dag_run_id}", "queue")
        return obeyed

    def _decide(self, claim: Claim, ending: Ending, dag: SerializedDag, below: Below, *, left: bool) -> bool:
        """Report with all of `below` locked, its joins decided from what is true then."""
        with self._hot.deciding(claim, below.all()):
            fault_points.point("follow.locked")
            moves = moves_of(dag, claim, [*below.settled, *self._decide_joins(claim, ending.state, dag, below)])
            reported = self._hot.report(claim, ending, moves, aging=self._aging)
            fault_points.point("follow.commit")
        return self._send(claim, ending, dag, reported, left=left)

    def _decide_joins(self, claim: Claim, mine: TaskState, dag: SerializedDag, below: Below) -> list[Decision]:
        states = self._hot.upstream_states(claim, below.joins, dag)
        decided = [_join(dag, join, Counter({mine: 1}) + Counter(dict(states[join])), claim, mine) for join in below.joins]
        if below.peer_joins:
            peers = self._hot.peer_states(claim, {no for join in below.peer_joins for no in dag.upstream[join]})
            peers[claim.task_no] = mine
            decided += [
                _join(dag, join, Counter(peers[no] for no in dag.upstream[join] if no in peers), claim, mine, peers=True)
                for join in below.peer_joins
            ]
        return [one for one in decided if one is not None]

    def _suspend(self, claim: Claim, ending: Ending) -> bool:
        others_wait = self._hot.suspend(claim, ending)
        if others_wait is not None:
            fault_points.point("report.after")
        tokens = ["queue"] if others_wait else []
        if ending.delay_s is not None and ending.delay_s < SOON_S:
            tokens.append(f"run:{claim.dag_run_id}")
        if others_wait is not None and tokens:
            self._wakeups.wake(*tokens)
        if others_wait is not None and ending.deferral is not None:
            self._wakeups.wake_waiters()
        return others_wait is not None or self._hot.ended_as(claim, ending.state)

    def _send(self, claim: Claim, ending: Ending, dag: SerializedDag, reported: Reported | None, *, left: bool) -> bool:
        if reported is None:
            return self._hot.ended_as(claim, ending.state)
        fault_points.point("report.after")
        tokens = rings(claim, dag, reported, left=left)
        # Queued without a message is a state that rescue looks for, so a broker that is away loses nothing.
        with suppress(*PUBLISH_ERRORS):
            queued = [*reported.moved, *([reported.handed_on] if reported.handed_on else [])]
            self._publisher.publish([_message(claim, one) for one in queued if one.dispatch_id])
        fault_points.point("follow.published")
        if tokens:
            self._wakeups.wake(*tokens)
        fault_points.point("follow.rung")
        return True


def settle(dag: SerializedDag, claim: Claim, ending: Ending) -> Below:
    """Sort the tasks below `claim`: what this ending settles, what needs a look at others, what is left to the scheduler."""
    skipped = set(ending.skip or ())
    below = Below()
    for no in dag.downstream[claim.task_no]:
        task = dag.tasks[no]
        peers = task.mapped_group is not None and task.mapped_group == dag.tasks[claim.task_no].mapped_group
        if task.task_id in skipped or not dag.follows(claim.task_no, no):
            below.left += () if task.task_id in skipped else (no,)
            continue
        alone = len(dag.upstream[no]) == 1 and (peers or not dag.tasks[claim.task_no].is_mapped)
        verdict = decide(task.trigger_rule, Upstream.of([ending.state], 1 if alone else MANY))
        if verdict.state is not None:
            reason = _reason(verdict, claim, ending.state)
            below.settled.append(Decision(no, verdict.state, reason, claim.map_index if peers else -1))
        elif not alone:
            (below.peer_joins if peers else below.joins).append(no)
    for task_id in sorted(skipped & dag.number.keys()):
        no = dag.number[task_id]
        peers = dag.tasks[no].mapped_group is not None and dag.tasks[no].mapped_group == dag.tasks[claim.task_no].mapped_group
        reason = f"{claim.task_id} decided to skip it"
        below.settled.append(Decision(no, TaskState.SKIPPED, reason, claim.map_index if peers else -1))
    return below


def moves_of(
    dag: SerializedDag,
    claim: Claim,
    downstream: Sequence[Decision],
    *,
    hand_on: bool = True,
    joins: Sequence[int] = (),
    left: Sequence[int] = (),
) -> Moves:
    """What to store together with a report; without `hand_on` its slots go to nobody."""
    decisions = sorted(downstream, key=lambda one: one.task_no)
    return Moves(
        decisions=decisions,
        successor=choose_successor(dag, claim, decisions),
        dispatch_id=str(uuid.uuid4()) if hand_on else None,
        below_branch=dag.below_branch,
        joins=joins,
        left=left,
    )


def choose_successor(dag: SerializedDag, claim: Claim, decisions: Sequence[Decision]) -> int | None:
    """The place in `decisions` of the best ranked ready task that fits into the slots this one gives back.

    One with a limit over its own instances is none: the others are not counted here.
    """
    fitting = [
        place
        for place, one in enumerate(decisions)
        if one.state is TaskState.SCHEDULED
        and dag.tasks[one.task_no].pool == claim.pool
        and dag.tasks[one.task_no].pool_slots <= claim.pool_slots
        and not dag.tasks[one.task_no].is_limited
    ]
    return min(fitting, key=lambda at: (-dag.tasks[decisions[at].task_no].priority_weight, at), default=None)


def rings(claim: Claim, dag: SerializedDag, reported: Reported, *, left: bool) -> list[str]:
    """Whom to wake: the queue service if there may be slots for something that waits, promote if the run may end or something is
    left to it, the next run of the DAG if its tasks wait for those of this one, and whoever takes the notice that this ending gave.
    """
    moved = reported.moved
    tokens = []
    if _may_find_room(claim, reported):
        tokens.append("queue")
    travels = any(
        one.state in FINISHED and dag.downstream[dag.number[one.task_id]] for one in moved
    )  # further down is the scheduler's business
    # What did not move was decided by somebody else, or the scheduler has to.
    if travels or not reported.others_wait or left or not reported.all_moved:
        tokens.append(f"run:{claim.dag_run_id}")
    if dag.depends_on_past:
        tokens.append(f"next:{claim.dag_run_id}")
    if claim.task_no < len(dag.tasks) and dag.tasks[claim.task_no].notify:
        tokens += ["notify", *(("plan",) if dag.tasks[claim.task_no].outlets else ())]
    return tokens


def _may_find_room(claim: Claim, reported: Reported) -> bool:
    """Whether there may be slots for something that waits, of which the queue service has not been told."""
    ready = [one for one in reported.moved if one.state is TaskState.SCHEDULED]
    successor = next((one for one in reported.moved if one.state is TaskState.QUEUED), None)
    first = reported.handed_on
    if (new := successor or first) is not None and new.pool_slots < claim.pool_slots and (ready or reported.pool_has_waiting):
        return True
    if first is not None:
        # What became ready stands behind it in the line. It waited for slots and a place in its queue: where these need the same
        # there is no room, or the queue service was about to come, finds that one gone and looks again (services/queue).
        return any((one.pool, one.queue) != (first.pool, first.queue) for one in ready)
    return bool(ready) or (reported.pool_has_waiting and successor is None)


def _join(
    dag: SerializedDag, join: int, states: Counter[TaskState], claim: Claim, mine: TaskState, *, peers: bool = False
) -> Decision | None:
    map_index = claim.map_index if peers else -1
    verdict = decide(dag.tasks[join].trigger_rule, Upstream.counted(states))
    return None if verdict.state is None else Decision(join, verdict.state, _reason(verdict, claim, mine), map_index)


def _reason(verdict: Verdict, claim: Claim, mine: TaskState) -> str:
    """Of the tasks above only the one that ended is known by name."""
    name = claim.task_id if claim.map_index < 0 else f"{claim.task_id}[{claim.map_index}]"
    return verdict.naming([name] if mine in verdict.states else [])


def _message(claim: Claim, one: Moved) -> Message:
    assert one.dispatch_id is not None
    return Message(
        ti_id=one.id,
        dispatch_id=one.dispatch_id,
        queue=one.queue,
        dag_id=claim.dag_id,
        run_id=claim.run_id,
        task_id=one.task_id,
        map_index=one.map_index,
        priority_weight=one.priority_weight,
    )
