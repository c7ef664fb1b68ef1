"""What a finished task may queue next. Workers call it; it costs O(direct downstream tasks) whatever the size of the DAG.

1. Verdicts that this one result settles (a single upstream task, a failure under all_success) need no look at anybody else.
2. A join whose other upstream tasks are not all with a worker cannot be ready: one index probe says so, no lock is taken.
3. Else the joins are locked in id order and decided from what their upstream tasks are now.
4. The report, the verdicts and at most one heir, which inherits the slots and goes straight to queued, are one transaction.
5. After the commit the heir's message is sent; what else became ready rings the doorbell.

Following never oversubscribes a pool (the heir takes no more than its predecessor gives back), and never starves another
DAG (a waiting task instance of that pool that outranks the heir sends it to the back of the line).
"""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from scheduler.deciding.rules import Upstream, decide
from scheduler.dispatch import PUBLISH_ERRORS, Message, Publisher
from scheduler.doorbell import Doorbell
from scheduler.serialized import SerializedDag
from scheduler.states import FINISHED, Decision, TaskState
from scheduler.store.hot import Claim, HotPath, Moved, Reported


@dataclass(frozen=True, slots=True)
class Ending:
    """How a try ended: its new state, why, the JSON text of its return value, and seconds until it is due again."""

    state: TaskState
    reason: str | None = None
    result: str | None = None
    delay_s: float | None = None


class Follower:
    """Reports for one pool child and sends what follows."""

    def __init__(self, hot: HotPath, publisher: Publisher, doorbell: Doorbell, *, enabled: bool) -> None:
        self._hot = hot
        self._publisher = publisher
        self._doorbell = doorbell
        self._enabled = enabled

    def report(self, claim: Claim, ending: Ending) -> bool:
        """Store the ending and follow; False if the task instance is no longer this dispatch's."""
        dag = self._hot.dag(claim.version_id)
        if not self._enabled or ending.state not in FINISHED:
            return self._send(claim, ending.state, dag, self._store(claim, ending, dag, ()))
        settled, open_joins = settle(dag, claim.task_no, ending.state)
        if open_joins:
            waiting = self._hot.unstarted(claim.dag_run_id, open_joins, dag)
            open_joins = [join for join in open_joins if join not in waiting]
        if not open_joins:
            return self._send(claim, ending.state, dag, self._store(claim, ending, dag, settled))
        with self._hot.deciding(claim, open_joins):
            states = self._hot.upstream_states(claim, open_joins, dag)
            joined = [_join(dag, join, states[join], ending.state) for join in open_joins]
            reported = self._store(claim, ending, dag, [*settled, *filter(None, joined)])
        return self._send(claim, ending.state, dag, reported)

    def _store(self, claim: Claim, ending: Ending, dag: SerializedDag, downstream: Sequence[Decision]) -> Reported | None:
        heir = choose_heir(dag, claim, downstream)
        return self._hot.report(
            claim,
            state=ending.state,
            reason=ending.reason,
            delay_s=ending.delay_s,
            result=ending.result,
            downstream=sorted(downstream, key=lambda one: one.task_no),
            heir=heir,
            heir_dispatch_id=None if heir is None else str(uuid.uuid4()),
        )

    def _send(self, claim: Claim, state: TaskState, dag: SerializedDag, reported: Reported | None) -> bool:
        if reported is None:
            return self._hot.ended_as(claim, state)
        tokens = rings(claim, dag, reported, following=self._enabled)
        # Queued without a message is a state that rescue looks for, so a broker that is away loses nothing.
        with suppress(*PUBLISH_ERRORS):
            self._publisher.publish([_message(claim, one) for one in reported.moved if one.dispatch_id])
        if tokens:
            self._doorbell.ring(*tokens)
        return True


def settle(dag: SerializedDag, task_no: int, state: TaskState) -> tuple[list[Decision], list[int]]:
    """Verdicts on direct downstream tasks that `state` of this one task decides, and the joins that need a look at others."""
    settled, joins = [], []
    for below in dag.downstream[task_no]:
        total = len(dag.upstream[below])
        verdict = decide(dag.tasks[below].trigger_rule, Upstream.of([state], total))
        if verdict.state is not None:
            settled.append(Decision(below, verdict.state, verdict.reason))
        elif total > 1:
            joins.append(below)
    return settled, joins


def choose_heir(dag: SerializedDag, claim: Claim, downstream: Sequence[Decision]) -> int | None:
    """The best ranked ready task that fits into the slots this one gives back."""
    fitting = [
        one.task_no
        for one in downstream
        if one.state is TaskState.SCHEDULED
        and dag.tasks[one.task_no].pool == claim.pool
        and dag.tasks[one.task_no].pool_slots <= claim.pool_slots
    ]
    return min(fitting, key=lambda no: (-dag.tasks[no].priority_weight, no), default=None)


def rings(claim: Claim, dag: SerializedDag, reported: Reported, *, following: bool) -> list[str]:
    """Whom to wake: the queue service if something waits for slots, promote if the run may end or a skip must travel on."""
    moved = reported.moved
    tokens = []
    inherited = any(one.state is TaskState.QUEUED for one in moved)
    if any(one.state is TaskState.SCHEDULED for one in moved) or (reported.pool_has_waiting and not inherited):
        tokens.append("queue")
    travels = any(
        one.state in FINISHED and dag.downstream[dag.number[one.task_id]] for one in moved
    )  # further down is the scheduler's business
    if travels or not reported.others_wait or not following:
        tokens.append(f"run:{claim.dag_run_id}")
    return tokens


def _join(dag: SerializedDag, join: int, others: Sequence[tuple[TaskState, int]], mine: TaskState) -> Decision | None:
    states = [mine, *(state for state, count in others for _ in range(count))]
    verdict = decide(dag.tasks[join].trigger_rule, Upstream.of(states))
    return None if verdict.state is None else Decision(join, verdict.state, verdict.reason)


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
