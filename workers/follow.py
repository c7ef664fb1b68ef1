"""Fast-follow: reports the end of a try and queues the tasks that can run next, in one transaction, then sends a message.

deciding/following.py decides, and store/worker/hot_path.py stores. Workers call it; it costs O(direct downstream tasks),
whatever the size of the DAG.
"""

import logging
import uuid
from contextlib import suppress

import psycopg2

from scheduler.deciding import following
from scheduler.deciding.following import Moves, Plan, Ranges
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import PUBLISH_ERRORS, Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.serialized.dag import SerializedDag
from scheduler.states import FINISHED, SUSPENDED, TaskState
from scheduler.store.db import sqlstates
from scheduler.store.worker import dispatches
from scheduler.store.worker.claims import Claim, Continuation, Ending, Moved, Reported, Undecided
from scheduler.store.worker.hot_path import HotPath

log = logging.getLogger("paceline.worker")

#: Seconds. A task instance that is due later than this is found by the poll of the scheduler.
SOON_S = 1.0


class Follower:
    """Reports the tries of one pool process, and sends the messages that follow.

    After a temporary psycopg2.Error, call `report` again; see is_passing in scheduler/store/db/sqlstates.py.
    """

    def __init__(self, hot: HotPath, publisher: Publisher, wakeups: Wakeups, *, enabled: bool, aging: bool = False) -> None:
        self._hot = hot
        self._publisher = publisher
        self._wakeups = wakeups
        self._enabled = enabled
        self._aging = aging

    def report(self, claim: Claim, ending: Ending, continuation: Continuation | None = None) -> bool:
        """Store the end of a try and follow it. False if the task instance no longer belongs to this dispatch.

        With a continuation, the next task instance may run in this process. Its claim is then in the continuation, and it needs no
        message.

        The outcome of a task must not depend on its downstream tasks: after an error there, the end is stored alone, and the
        scheduler decides the downstream tasks.
        """
        try:
            if ending.state in SUSPENDED:
                return self._suspend(claim, ending)
            return self._follow(claim, ending, continuation)
        except Exception as error:
            if sqlstates.is_passing(error):
                raise
            log.exception(
                "The downstream tasks of %s.%s (run %s) could not be followed; the scheduler decides them",
                claim.dag_id, claim.task_id, claim.run_id,
            )  # fmt: skip
            return self._report_alone(claim, ending, continuation)

    def end_as_requested(self, claim: Claim) -> bool:
        """Apply the state that a clear or mark requested, once the user code has stopped. False if none was requested."""
        ended = dispatches.end_as_requested(self._hot, claim)
        if ended:
            self._wakeups.wake(f"run:{claim.dag_run_id}", "queue")
        return ended

    def _follow(self, claim: Claim, ending: Ending, continuation: Continuation | None) -> bool:
        """Plan and report; if a join may be ready, lock it, plan and report again; then announce."""
        dag = self._hot.dag(claim.version_id)
        in_place_id = None if continuation is None or continuation.withdrawn else continuation.dispatch_id
        plan = following.plan_of(dag, claim, ending.state, ending.skip, enabled=self._enabled)
        reported: Reported | Undecided | None
        if plan.peer_joins:
            waiting = self._hot.unstarted(claim.dag_run_id, Ranges.above(dag, [*plan.joins, *plan.left]))
            reported = Undecided(waiting)
        else:
            moves = following.moves_of(dag, claim, plan, str(uuid.uuid4()), in_place_id)
            reported = self._hot.report(claim, ending, moves, aging=self._aging)
        planned = plan
        if isinstance(reported, Undecided):
            plan = plan.without(reported.waiting)
            reported = self._report_locked(claim, ending, dag, plan, in_place_id)
        if reported is None:
            return self._ended_before(claim, ending, continuation)
        if continuation is not None:
            continuation.claim = reported.continues
        needs_scheduler = (
            plan.needs_scheduler or not reported.waiting.issuperset(plan.left) or self._is_last(claim, dag, planned, reported)
        )
        announce(self._publisher, self._wakeups, claim, dag, reported, needs_scheduler=needs_scheduler)
        return True

    def _is_last(self, claim: Claim, dag: SerializedDag, plan: Plan, reported: Reported) -> bool:
        """Whether this report was the last one that could decide a task below or end the run, and was planned without that
        knowledge.

        A task instance that waited when the report began can start and end before the report is stored.
        """
        moved = {dag.number[one.task_id] for one in (*reported.moved, reported.slots_passed_to) if one is not None}
        undecided = following.undecided(dag, plan, moved)
        if not undecided and (moved or not reported.others_wait):
            return False
        try:
            return self._hot.needs_scheduler(claim.dag_run_id, Ranges.above(dag, undecided))
        except psycopg2.Error:
            # The report is stored, and must be announced.
            return True

    def _report_locked(
        self, claim: Claim, ending: Ending, dag: SerializedDag, plan: Plan, in_place_id: str | None
    ) -> Reported | None:
        """Lock every task instance that may move, decide the joins from the current states, and report."""
        with self._hot.deciding(claim, plan.affected):
            fault_points.point("follow.locked")
            upstream = self._hot.upstream_states(claim, plan.joins, Ranges.above(dag, plan.joins))
            peers = self._hot.peer_states(claim, {no for join in plan.peer_joins for no in dag.upstream[join]})
            decided = following.decide_joins(dag, claim, ending.state, plan, upstream=upstream, peers=peers)
            moves = following.moves_of(dag, claim, decided, str(uuid.uuid4()), in_place_id)
            reported = self._hot.report(claim, ending, moves, aging=self._aging)
            fault_points.point("follow.commit")
        assert not isinstance(reported, Undecided), "no joins are left to ask about"
        return reported

    def _suspend(self, claim: Claim, ending: Ending) -> bool:
        others_wait = self._hot.suspend(claim, ending)
        if others_wait is None:
            return self._ended_before(claim, ending)
        fault_points.point("report.after")
        tokens = ["queue"] if others_wait else []
        if ending.delay_s is not None and ending.delay_s < SOON_S:
            tokens.append(f"run:{claim.dag_run_id}")
        if tokens:
            self._wakeups.wake(*tokens)
        if ending.deferral is not None:
            self._wakeups.wake_waiters()
        return True

    def _ended_before(self, claim: Claim, ending: Ending, continuation: Continuation | None = None) -> bool:
        """Whether an earlier report of this end was stored although its answer was lost. It may continue in this process.

        It continues even if the end has been cleared or marked since: no other process runs that task instance.
        """
        if continuation is not None:
            continuation.claim = self._hot.continued(claim, continuation.dispatch_id)
        return dispatches.ended_as(self._hot, claim, ending.state)

    def _report_alone(self, claim: Claim, ending: Ending, continuation: Continuation | None) -> bool:
        """Store the end without deciding anything, and wake every service that may have something to do after it."""
        if ending.state in SUSPENDED:
            accepted = self._hot.suspend(claim, ending) is not None
        else:
            accepted = self._hot.report(claim, ending, Moves()) is not None
        accepted = accepted or self._ended_before(claim, ending, continuation)
        if accepted:
            self._wakeups.wake("queue", f"run:{claim.dag_run_id}", f"next:{claim.dag_run_id}", "notify", "plan")
            if ending.deferral is not None:
                self._wakeups.wake_waiters()
        return accepted


def announce(
    publisher: Publisher, wakeups: Wakeups, claim: Claim, dag: SerializedDag, reported: Reported, *, needs_scheduler: bool
) -> None:
    """Send the messages of queued task instances, then wake the services that have something to do."""
    fault_points.point("report.after")
    queued = [
        moved for moved in (*reported.moved, reported.slots_passed_to) if moved is not None and moved.state is TaskState.QUEUED
    ]
    # The rescue service finds queued task instances without a message, so nothing is lost while the broker is down.
    with suppress(*PUBLISH_ERRORS):
        if queued:
            publisher.publish([_message(claim, moved) for moved in queued])
    fault_points.point("follow.published")
    if tokens := wakeup_tokens(claim, dag, reported, needs_scheduler=needs_scheduler):
        wakeups.wake(*tokens)
    fault_points.point("follow.woken")


def wakeup_tokens(claim: Claim, dag: SerializedDag, reported: Reported, *, needs_scheduler: bool) -> list[str]:
    """The wakeups to send: for queue, if there may be slots for a waiting task instance; for the run, if it may end or the
    scheduler must decide something; for the next run, if its tasks wait for this one; and for the services of notices.
    """
    tokens = []
    if _may_find_capacity(claim, reported):
        tokens.append("queue")
    # A moved task that is finished has downstream tasks that only the scheduler decides.
    decided = not any(moved.state in FINISHED and dag.downstream[dag.number[moved.task_id]] for moved in reported.moved)
    if needs_scheduler or not (decided and reported.others_wait and reported.all_moved):
        tokens.append(f"run:{claim.dag_run_id}")
    if dag.depends_on_past:
        tokens.append(f"next:{claim.dag_run_id}")
    if claim.task_no < len(dag.tasks) and dag.tasks[claim.task_no].notify:
        tokens += ["notify", *(("plan",) if dag.tasks[claim.task_no].outlets else ())]
    return tokens


def _may_find_capacity(claim: Claim, reported: Reported) -> bool:
    """Whether the report may have freed slots for a waiting task instance without the queue service."""
    ready = [moved for moved in reported.moved if moved.state is TaskState.SCHEDULED]
    successor = next((moved for moved in reported.moved if moved.dispatch_id is not None), None)
    first = reported.slots_passed_to
    if (new := successor or first) is not None and new.pool_slots < claim.pool_slots and (ready or reported.pool_has_waiting):
        return True
    if first is not None:
        # The ready tasks have a lower rank. `first` waited for slots of its pool and a place in its queue, so there is no
        # capacity for others that need both. Or a pass of the queue service had chosen `first`; then it misses it and another
        # pass follows (see `lost` in services/queue).
        return any((moved.pool, moved.queue) != (first.pool, first.queue) for moved in ready)
    return bool(ready) or (reported.pool_has_waiting and successor is None)


def _message(claim: Claim, moved: Moved) -> Message:
    assert moved.dispatch_id is not None
    return Message(
        ti_id=moved.id,
        dispatch_id=moved.dispatch_id,
        queue=moved.queue,
        dag_id=claim.dag_id,
        run_id=claim.run_id,
        task_id=moved.task_id,
        map_index=moved.map_index,
        priority_weight=moved.priority_weight,
    )
