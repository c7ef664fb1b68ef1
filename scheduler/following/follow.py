"""Fast-follow: reports the end of a try and queues the tasks that can run next, in one transaction, then sends a message.

deciding/following.py decides, store/worker/hot_path.py stores, announce.py sends the message and the wakeups. Workers call
it; it costs O(direct downstream tasks), whatever the size of the DAG.
"""

import logging
import uuid

from scheduler.deciding import following
from scheduler.deciding.following import Moves, Plan, Ranges
from scheduler.following.announce import announce
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.serialized.dag import SerializedDag
from scheduler.states import TaskState
from scheduler.store.db import sqlstates
from scheduler.store.worker import dispatches
from scheduler.store.worker.claims import Claim, Ending, Reported, Undecided
from scheduler.store.worker.hot_path import HotPath

log = logging.getLogger("paceline.worker")

#: The states in which the try continues with a later dispatch.
SUSPENDED = frozenset({TaskState.UP_FOR_RESCHEDULE, TaskState.DEFERRED})
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

    def report(self, claim: Claim, ending: Ending) -> bool:
        """Store the end of a try and follow it. False if the task instance no longer belongs to this dispatch.

        The outcome of a task must not depend on its downstream tasks: after an error there, the end is stored alone, and the
        scheduler decides the downstream tasks.
        """
        try:
            if ending.state in SUSPENDED:
                return self._suspend(claim, ending)
            return self._follow(claim, ending)
        except Exception as error:
            if sqlstates.is_passing(error):
                raise
            log.exception(
                "The downstream tasks of %s.%s (run %s) could not be followed; the scheduler decides them",
                claim.dag_id, claim.task_id, claim.run_id,
            )  # fmt: skip
            self._hot.close()
            return self._report_alone(claim, ending)

    def obey(self, claim: Claim) -> bool:
        """Apply the state that a clear or mark requested, once the user code has stopped. False if none was requested."""
        obeyed = dispatches.obey(self._hot, claim)
        if obeyed:
            self._wakeups.wake(f"run:{claim.dag_run_id}", "queue")
        return obeyed

    def _follow(self, claim: Claim, ending: Ending) -> bool:
        """Plan and report; if a join may be ready, lock it, plan and report again; then announce."""
        dag = self._hot.dag(claim.version_id)
        plan = following.plan_of(dag, claim, ending.state, ending.skip, enabled=self._enabled)
        reported: Reported | Undecided | None
        if plan.peer_joins:
            waiting = self._hot.unstarted(claim.dag_run_id, Ranges.above(dag, [*plan.joins, *plan.left]))
            reported = Undecided(waiting)
        else:
            moves = following.moves_of(dag, claim, plan, str(uuid.uuid4()))
            reported = self._hot.report(claim, ending, moves, aging=self._aging)
        if isinstance(reported, Undecided):
            plan = plan.without(reported.waiting)
            reported = self._report_locked(claim, ending, dag, plan)
        if reported is None:
            return dispatches.ended_as(self._hot, claim, ending.state)
        needs_scheduler = plan.needs_scheduler or not reported.waiting.issuperset(plan.left)
        announce(self._publisher, self._wakeups, claim, dag, reported, needs_scheduler=needs_scheduler)
        return True

    def _report_locked(self, claim: Claim, ending: Ending, dag: SerializedDag, plan: Plan) -> Reported | None:
        """Lock every task instance that may move, decide the joins from the current states, and report."""
        with self._hot.deciding(claim, plan.affected):
            fault_points.point("follow.locked")
            upstream = self._hot.upstream_states(claim, plan.joins, Ranges.above(dag, plan.joins))
            peers = self._hot.peer_states(claim, {no for join in plan.peer_joins for no in dag.upstream[join]})
            decided = following.decide_joins(dag, claim, ending.state, plan, upstream=upstream, peers=peers)
            moves = following.moves_of(dag, claim, decided, str(uuid.uuid4()))
            reported = self._hot.report(claim, ending, moves, aging=self._aging)
            fault_points.point("follow.commit")
        assert not isinstance(reported, Undecided), "no joins are left to ask about"
        return reported

    def _suspend(self, claim: Claim, ending: Ending) -> bool:
        others_wait = self._hot.suspend(claim, ending)
        if others_wait is None:
            return dispatches.ended_as(self._hot, claim, ending.state)
        fault_points.point("report.after")
        tokens = ["queue"] if others_wait else []
        if ending.delay_s is not None and ending.delay_s < SOON_S:
            tokens.append(f"run:{claim.dag_run_id}")
        if tokens:
            self._wakeups.wake(*tokens)
        if ending.deferral is not None:
            self._wakeups.wake_waiters()
        return True

    def _report_alone(self, claim: Claim, ending: Ending) -> bool:
        """Store the end without deciding anything, and wake every service that may have something to do after it."""
        if ending.state in SUSPENDED:
            accepted = self._hot.suspend(claim, ending) is not None
        else:
            accepted = self._hot.report(claim, ending, Moves()) is not None
        accepted = accepted or dispatches.ended_as(self._hot, claim, ending.state)
        if accepted:
            self._wakeups.wake("queue", f"run:{claim.dag_run_id}", f"next:{claim.dag_run_id}", "notify", "plan")
            if ending.deferral is not None:
                self._wakeups.wake_waiters()
        return accepted
