"""Fast-follow: reports the end of a try and queues the tasks that can run next, in one transaction, then sends a message.

deciding/following.py decides, and store/worker/hot_path.py stores. Workers call it; it costs O(direct downstream tasks),
whatever the size of the DAG.
"""

import logging
from contextlib import suppress

import psycopg2

from paceline.states import FINISHED, SUSPENDED, TaskState
from scheduler.deciding.following import NO_MOVES, Plan, Ranges, plan_of, undecided
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import PUBLISH_ERRORS, Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.serialized.dag import SerializedDag
from scheduler.store.db import sqlstates
from scheduler.store.worker import dispatches
from scheduler.store.worker.claims import Claim, Ending, Moved, NextInPlace, Refused, Reported, Undecided
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

    def report(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None = None) -> Reported | Refused:
        """Store the end of a try and follow it. Refused if the task instance no longer belongs to this dispatch.

        With `next_in_place`, the next task instance may run in this process. Then it needs no message: the answer has its claim.

        The outcome of a task must not depend on its downstream tasks: after an error there, the end is stored alone, and the
        scheduler decides the downstream tasks.
        """
        try:
            return self._follow(claim, ending, next_in_place, self._hot.dag(claim.version_id))
        except Exception as error:
            if sqlstates.is_passing(error):
                raise
            log.exception(
                "The downstream tasks of %s.%s (run %s) could not be followed; the scheduler decides them",
                claim.dag_id, claim.task_id, claim.run_id,
            )  # fmt: skip
            return self._follow(claim, ending, next_in_place, None)

    def end_as_requested(self, claim: Claim) -> bool:
        """Apply the state that a clear or mark requested, once the user code has stopped. False if none was requested."""
        ended = dispatches.end_as_requested(self._hot, claim)
        if ended:
            self._wakeups.wake(f"run:{claim.dag_run_id}", "queue")
        return ended

    def _follow(
        self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None, dag: SerializedDag | None
    ) -> Reported | Refused:
        """Plan and report; if a join may be ready, lock it, plan and report again; then announce. Without `dag`, nothing moves."""
        plan = NO_MOVES if dag is None or not self._enabled else plan_of(dag, claim, ending.state, ending.skip)
        answer: Reported | Undecided | Refused
        if ending.state in SUSPENDED:
            answer = self._hot.suspend(claim, ending)
        else:
            answer = self._hot.report(claim, ending, plan, next_in_place, aging=self._aging)
        waiting = answer.waiting
        if isinstance(answer, Undecided):
            assert dag is not None, "a plan without moves has no joins"
            with self._hot.locked(claim, plan, waiting) as states:
                fault_points.point("follow.locked")
                decided = plan_of(dag, claim, ending.state, ending.skip, states)
                answer = self._hot.report(claim, ending, decided, next_in_place, aging=self._aging, is_locked=True)
                fault_points.point("follow.commit")
        assert not isinstance(answer, Undecided), "under locks, nothing is left to ask about"
        if isinstance(answer, Reported):
            certain = not plan.needs_scheduler and waiting.issuperset(plan.left)
            needs_scheduler = dag is None or not certain or self._is_last(claim, dag, plan, answer)
            self._announce(claim, ending, dag, answer, needs_scheduler=needs_scheduler)
        return answer

    def _is_last(self, claim: Claim, dag: SerializedDag, plan: Plan, reported: Reported) -> bool:
        """Whether no later report can decide the remaining downstream tasks or end the run, although the plan assumed one would.

        A task instance that waited when the report began can start and end before the report is stored.
        """
        moved = {dag.number[each.task_id] for each in (*reported.moved, reported.slots_passed_to) if each is not None}
        asked = Ranges.above(dag, undecided(dag, plan, moved))
        if not asked.tasks and (moved or not reported.others_wait):
            return False
        try:
            return self._hot.needs_scheduler(claim, asked)
        except psycopg2.Error:
            # The report is stored, and must be announced.
            return True

    def _announce(
        self, claim: Claim, ending: Ending, dag: SerializedDag | None, reported: Reported, *, needs_scheduler: bool
    ) -> None:
        """Send the messages of queued task instances, then wake the services that have something to do."""
        fault_points.point("report.after")
        moved = (*reported.moved, reported.slots_passed_to)
        messages = [_message(claim, each) for each in moved if each is not None and each.state is TaskState.QUEUED]
        if dag is None:
            tokens = ["queue", f"run:{claim.dag_run_id}", f"next:{claim.dag_run_id}", "notify", "plan"]
        elif ending.state in SUSPENDED:
            tokens = _tokens_of_suspension(claim, ending, dag, reported)
        else:
            tokens = wakeup_tokens(claim, dag, reported, needs_scheduler=needs_scheduler)
        # The rescue service finds queued task instances without a message, so nothing is lost while the broker is down.
        with suppress(*PUBLISH_ERRORS):
            if messages:
                self._publisher.publish(messages)
        fault_points.point("follow.published")
        if tokens:
            self._wakeups.wake(*tokens)
        if ending.deferral is not None:
            self._wakeups.wake_waiters()
        fault_points.point("follow.woken")


def _tokens_of_suspension(claim: Claim, ending: Ending, dag: SerializedDag, reported: Reported) -> list[str]:
    tokens = ["queue"] if reported.pool_has_waiting or _frees_limit(claim, dag) else []
    if ending.delay_s is not None and ending.delay_s < SOON_S:
        tokens.append(f"run:{claim.dag_run_id}")
    return tokens


def wakeup_tokens(claim: Claim, dag: SerializedDag, reported: Reported, *, needs_scheduler: bool) -> list[str]:
    """The wakeups to send: for queue, if a waiting task instance may start; for the run, if it may end or the
    scheduler must decide something; for the next run, if its tasks wait for this one; and for the services of notices.
    """
    tokens = []
    if _may_find_capacity(claim, reported) or _frees_limit(claim, dag):
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


def _frees_limit(claim: Claim, dag: SerializedDag) -> bool:
    """Whether others of its task may be parked behind a limit that it has left, see store/queueing/parking."""
    return claim.task_no < len(dag.tasks) and dag.tasks[claim.task_no].is_limited


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
