"""The hot path of a pool process: claim, report and suspend as prepared statements on its own connection.

A claim is one round trip that does not wait for the disk. A report with fast-follow is one round trip that does, and so does
every other write. The heartbeat of the worker repeats a claim that a crash of PostgreSQL undid (store/upkeep/processes.still_held).
"""

import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from psycopg2.extras import Json

from paceline.states import STARTED, TaskState
from scheduler.deciding.following import NO_RANGES, JoinStates, Plan, Ranges
from scheduler.settings import Settings
from scheduler.store.moves import prepared as sql
from scheduler.store.worker.claims import (
    Claim,
    Ending,
    MovedInPlace,
    NextInPlace,
    Peer,
    Refused,
    Reported,
    ReportRow,
    Undecided,
    UpstreamCount,
)
from scheduler.store.worker.worker_connection import WorkerConnection

ENDED = "select 1 from task_instance where id = %s and dispatch_id = %s and state = %s"
#: With the version of its number: the run may have another one since the report.
#: The pool keeps the search short: its running and queued task instances have an index.
MOVED_IN_PLACE = f"""
select t.id, t.dispatch_id::text, t.task_id, t.map_index, t.queue, t.priority_weight, t.state, t.pool, t.pool_slots, t.task_no,
       t.try_number, t.max_tries, t.started_at, r.version_id
  from task_instance t join dag_run r on r.id = t.dag_run_id
 where t.pool = %s and t.state in {STARTED.sql} and t.dispatch_id = %s
"""


class HotPath(WorkerConnection):
    """The statements that a pool process runs for each task. `place` is the number of the process in its worker, from 0."""

    def __init__(self, settings: Settings, worker_id: str, place: int = 0) -> None:
        super().__init__(settings, worker_id)
        self._place = place

    def claim(self, ti_id: int, dispatch_id: str, is_repeated: bool = False) -> Claim | None:
        """queued -> running for exactly this dispatch; None if it cannot be claimed, as for a duplicate message.

        `is_repeated` says that this process got no answer to an earlier attempt. If that was stored, it counts.
        """
        claimed = self.objects(
            Claim,
            # For this transaction only: two statements in one message are one transaction.
            f"set local synchronous_commit = off; {sql.HOLD.execute}; {sql.CLAIM.execute}",
            {"ti_id": ti_id, "dispatch_id": dispatch_id, "worker": self.worker_id, "is_repeated": is_repeated},
        )
        return claimed[0] if claimed else None

    def report(
        self,
        claim: Claim,
        ending: Ending,
        plan: Plan,
        next_in_place: NextInPlace | None = None,
        *,
        aging: bool = False,
        is_locked: bool = False,
    ) -> Reported | Undecided | Refused:
        """running -> the end of the try, durably, with the moves of `plan`.

        With `next_in_place`, the task instance that gets the slots may go straight to running under that dispatch ID. `is_locked`:
        inside `locked`, which has the locks.
        """
        if plan.peer_joins:
            return Undecided(self._waiting(claim, plan.asked))
        in_place = plan.in_place and next_in_place is not None and not next_in_place.withdrawn
        hold = "" if is_locked else f"{(sql.HOLD_MOVES if plan.settled else sql.HOLD).execute}; "
        answer = self.objects(
            ReportRow,
            f"{hold}{sql.REPORT.execute}",
            {
                **_names(claim, plan.asked),
                **_end(ending),
                "result": ending.result,
                "worker": self.worker_id,
                "decision": None if ending.skip is None else Json({"skip": list(ending.skip)}),
                "aging": aging,
                "task_nos": [decision.task_no for decision in plan.settled],
                "map_indexes": [decision.map_index for decision in plan.settled],
                "verdicts": [decision.state.value for decision in plan.settled],
                "reasons": [decision.reason for decision in plan.settled],
                "below_branch": [decision.task_no in plan.below_branch for decision in plan.settled],
                "successor": None if plan.successor is None else plan.successor + 1,
                "next_dispatch_id": str(uuid.uuid4()) if plan.passes_slots else None,
                "in_place_id": next_in_place.dispatch_id if next_in_place is not None and in_place else None,
                "line_in_place": plan.line_in_place,
                "place": self._place,
                "joins": plan.joins,
            },
        )
        first = answer[0]
        waiting = frozenset(first.waiting)
        if not waiting.issuperset(plan.joins):
            return Undecided(waiting)
        if first.others_wait is None:
            return self._refused(claim, ending, next_in_place)
        moved = tuple(row for row in answer if row.was_waiting is False)
        return Reported(
            pool_has_waiting=first.pool_has_waiting,
            others_wait=first.others_wait,
            moved=moved,
            slots_passed_to=next((row for row in answer if row.was_waiting), None),
            continues=next((_claim_in_place(claim, row) for row in answer if row.state is TaskState.RUNNING), None),
            waiting=waiting,
            all_moved=bool(first.run_goes_on) and len(moved) == len(plan.settled),
        )

    def suspend(self, claim: Claim, ending: Ending) -> Reported | Refused:
        """running -> up_for_reschedule or deferred, durably."""
        deferral = ending.deferral
        pool_has_waiting: bool | None = self.value(
            sql.SUSPEND.execute,
            {
                **_names(claim),
                **_end(ending),
                "resume": Json(ending.resume or {}),
                "classpath": deferral and deferral.classpath,
                "kwargs": Json(deferral.kwargs if deferral else {}),
                "file": deferral and deferral.file,
            },
        )
        if pool_has_waiting is None:
            return self._refused(claim, ending)
        return Reported(pool_has_waiting=pool_has_waiting, others_wait=True)

    @contextmanager
    def locked(self, claim: Claim, plan: Plan, waiting: Collection[int] = ()) -> Iterator[JoinStates]:
        """A transaction with the claimed task instance and those that `plan` may move locked, in ID order.

        Returns the states around the joins, without those in `waiting`, which cannot be ready.
        """
        joins = [join for join in plan.joins if join not in waiting]
        tasks = [*joins, *plan.peer_joins, *(decision.task_no for decision in plan.settled)]
        with self.transaction(sql.LOCK_JOINS.execute, {**_names(claim), "tasks": tasks}):
            yield JoinStates(self._upstream_states(claim, joins, plan.asked), self._peer_states(claim, plan.peers))

    def needs_scheduler(self, claim: Claim, asked: Ranges) -> bool:
        """Whether one of these tasks is undecided although all its upstream tasks have ended, or the run may end."""
        needs: bool = self.value(sql.NEEDS_SCHEDULER.execute, _names(claim, asked))
        return needs

    def _waiting(self, claim: Claim, asked: Ranges) -> frozenset[int]:
        """The tasks with an upstream task that no worker has: this report cannot make them ready."""
        return frozenset(task_no for (task_no,) in self.read(sql.UNSTARTED.execute, _names(claim, asked)))

    def _upstream_states(self, claim: Claim, joins: Collection[int], asked: Ranges) -> Mapping[int, Counter[TaskState]]:
        """For each join, the number of its upstream task instances by state, without the claimed one."""
        states: dict[int, Counter[TaskState]] = {join: Counter() for join in joins}
        if joins:
            for count in self.objects(UpstreamCount, sql.UPSTREAM_STATES.execute, _names(claim, asked.of(joins))):
                states[count.task_no][count.state] = count.instances
        return states

    def _peer_states(self, claim: Claim, peers: Collection[int]) -> Mapping[int, TaskState]:
        """The states of the instances of these tasks with the map index of the claim, by task number."""
        if not peers:
            return {}
        parameters = {**_names(claim), "tasks": list(peers)}
        return {peer.task_no: peer.state for peer in self.objects(Peer, sql.PEER_STATES.execute, parameters)}

    def _refused(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None = None) -> Refused:
        """The answer to a report that the database did not accept. It may repeat one that was stored, but whose answer was lost."""
        moved = [] if next_in_place is None else self.objects(MovedInPlace, MOVED_IN_PLACE, (claim.pool, next_in_place.dispatch_id))
        ended = self.read(ENDED, (claim.id, claim.dispatch_id, ending.state.value))
        return Refused(bool(ended), _claim_in_place(claim, moved[0]) if moved else None)


def _names(claim: Claim, asked: Ranges = NO_RANGES) -> dict[str, object]:
    """The parameters that name the task instance and the asked tasks of its run. A statement takes those that it has."""
    return {
        "ti_id": claim.id,
        "dispatch_id": claim.dispatch_id,
        "map_index": claim.map_index,
        "dag_run_id": claim.dag_run_id,
        "version_id": claim.version_id,
        "tasks": asked.tasks,
        "lows": asked.lows,
        "highs": asked.highs,
    }


def _end(ending: Ending) -> dict[str, object]:
    return {"state": ending.state.value, "reason": ending.reason, "due_in_s": ending.delay_s}


def _claim_in_place(claim: Claim, row: MovedInPlace) -> Claim:
    """The claim of a task instance of the same run, which the report of `claim` moved to running."""
    assert row.dispatch_id is not None, "a running task instance has a dispatch"
    own = {name: getattr(row, name) for name in Claim.__slots__ if hasattr(row, name)}
    return replace(claim, **own, resume=None)
