"""The hot path of a pool process: claim, report and suspend as prepared statements on its own connection.

A claim is one round trip that does not wait for the disk. A report with fast-follow is one round trip that does, and so does
every other write. The heartbeat of the worker repeats a claim that a crash of PostgreSQL undid (store/upkeep/processes.still_held).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from psycopg2.extras import Json

from scheduler.deciding.following import Moves, Ranges
from scheduler.settings import Settings
from scheduler.states import STARTED, TaskState
from scheduler.store.worker import hot_statements as sql
from scheduler.store.worker.claims import Claim, Continued, Ending, Peer, Reported, ReportRow, Undecided, UpstreamCount
from scheduler.store.worker.worker_connection import WorkerConnection

#: The pool keeps the search short: its running and queued task instances have an index.
CONTINUED = f"""
select id, dispatch_id::text, task_id, map_index, queue, priority_weight, state, pool, pool_slots, task_no, try_number, max_tries,
       started_at
  from task_instance where pool = %s and state in {STARTED.sql} and dispatch_id = %s
"""


class HotPath(WorkerConnection):
    """The statements that a pool process runs for each task. `place` is the number of the process in its worker, from 0."""

    def __init__(self, settings: Settings, worker_id: str, place: int = 0) -> None:
        super().__init__(settings, worker_id)
        self._place = place

    def claim(self, ti_id: int, dispatch_id: str) -> Claim | None:
        """queued -> running for exactly this dispatch; None if it cannot be claimed, as for a duplicate message."""
        claimed = self.objects(
            Claim,
            # For this transaction only: two statements in one message are one transaction.
            f"set local synchronous_commit = off; {sql.CLAIM.execute}",
            {"ti_id": ti_id, "dispatch_id": dispatch_id, "worker": self.worker_id},
        )
        return claimed[0] if claimed else None

    def report(self, claim: Claim, ending: Ending, moves: Moves, *, aging: bool = False) -> Reported | Undecided | None:
        """running -> its final state, durably, with `moves`; None if the task instance no longer belongs to this dispatch."""
        decisions = moves.decisions
        answer = self.objects(
            ReportRow,
            sql.REPORT.execute,
            {
                "ti_id": claim.id,
                "dispatch_id": claim.dispatch_id,
                "state": ending.state.value,
                "reason": ending.reason,
                "due_in_s": ending.delay_s,
                "result": ending.result,
                "worker": self.worker_id,
                "decision": None if ending.skip is None else Json({"skip": list(ending.skip)}),
                "version_id": claim.version_id,
                "aging": aging,
                "task_nos": [one.task_no for one in decisions],
                "map_indexes": [one.map_index for one in decisions],
                "verdicts": [one.state.value for one in decisions],
                "reasons": [one.reason for one in decisions],
                "below_branch": [one.task_no in moves.below_branch for one in decisions],
                "successor": None if moves.successor is None else moves.successor + 1,
                "next_dispatch_id": moves.dispatch_id,
                "in_place_id": moves.in_place_id,
                "line_in_place": moves.line_in_place,
                "place": self._place,
                "dag_run_id": claim.dag_run_id,
                "tasks": moves.asked.tasks,
                "lows": moves.asked.lows,
                "highs": moves.asked.highs,
                "joins": list(moves.joins),
            },
        )
        first = answer[0]
        waiting = frozenset(first.waiting)
        if not waiting.issuperset(moves.joins):
            return Undecided(waiting)
        if first.others_wait is None:
            return None
        moved = tuple(row for row in answer if row.was_waiting is False)
        return Reported(
            pool_has_waiting=first.pool_has_waiting,
            others_wait=first.others_wait,
            moved=moved,
            slots_passed_to=next((row for row in answer if row.was_waiting), None),
            continues=next((_continued(claim, row) for row in answer if row.state is TaskState.RUNNING), None),
            waiting=waiting,
            all_moved=len(moved) == len(decisions),
        )

    def continued(self, claim: Claim, dispatch_id: str) -> Claim | None:
        """The claim of the task instance that the report of `claim` moved to running under this ID, if its answer was lost."""
        found = self.objects(Continued, CONTINUED, (claim.pool, dispatch_id))
        return _continued(claim, found[0]) if found else None

    def suspend(self, claim: Claim, ending: Ending) -> bool | None:
        """running -> up_for_reschedule or deferred, durably. Returns whether others wait for the slots; None if it was rejected."""
        deferral = ending.deferral
        others_wait: bool | None = self.value(
            sql.SUSPEND.execute,
            {
                "ti_id": claim.id,
                "dispatch_id": claim.dispatch_id,
                "state": ending.state.value,
                "reason": ending.reason,
                "due_in_s": ending.delay_s,
                "resume": Json(ending.resume or {}),
                "classpath": deferral and deferral.classpath,
                "kwargs": Json(deferral.kwargs if deferral else {}),
                "file": deferral and deferral.file,
            },
        )
        return others_wait

    def unstarted(self, dag_run_id: int, asked: Ranges) -> frozenset[int]:
        """The tasks with an upstream task that no worker has: this report cannot make them ready."""
        waiting = self.read(
            sql.UNSTARTED.execute,
            {"dag_run_id": dag_run_id, "tasks": asked.tasks, "lows": asked.lows, "highs": asked.highs},
        )
        return frozenset(task_no for (task_no,) in waiting)

    def needs_scheduler(self, dag_run_id: int, asked: Ranges) -> bool:
        """Whether one of these tasks is undecided although all its upstream tasks have ended, or the run may end."""
        needs: bool = self.value(
            sql.NEEDS_SCHEDULER.execute,
            {"dag_run_id": dag_run_id, "tasks": asked.tasks, "lows": asked.lows, "highs": asked.highs},
        )
        return needs

    @contextmanager
    def deciding(self, claim: Claim, tasks: Sequence[int]) -> Iterator[None]:
        """A transaction with this task instance and those of `tasks` locked, in ID order."""
        with self._lock:
            self.run(
                f"begin; {sql.LOCK_JOINS.execute}",
                {"ti_id": claim.id, "dag_run_id": claim.dag_run_id, "tasks": list(tasks), "map_index": claim.map_index},
            )
            try:
                yield
            except BaseException:
                self.close()
                raise
            self.run("commit")

    def upstream_states(self, claim: Claim, joins: Sequence[int], upstream: Ranges) -> dict[int, Counter[TaskState]]:
        """For each join, the number of its upstream task instances by state, without the claimed one."""
        states: dict[int, Counter[TaskState]] = {join: Counter() for join in joins}
        if joins:
            counts = self.objects(
                UpstreamCount,
                sql.UPSTREAM_STATES.execute,
                {
                    "dag_run_id": claim.dag_run_id,
                    "tasks": upstream.tasks,
                    "lows": upstream.lows,
                    "highs": upstream.highs,
                    "ti_id": claim.id,
                },
            )
            for count in counts:
                states[count.task_no][count.state] = count.instances
        return states

    def peer_states(self, claim: Claim, tasks: Collection[int]) -> dict[int, TaskState]:
        """The states of the instances of these tasks with the map index of the claim, by task number."""
        if not tasks:
            return {}
        peers = self.objects(
            Peer,
            sql.PEER_STATES.execute,
            {"dag_run_id": claim.dag_run_id, "tasks": list(tasks), "map_index": claim.map_index},
        )
        return {peer.task_no: peer.state for peer in peers}


def _continued(claim: Claim, row: Continued) -> Claim:
    """The claim of a task instance of the same run, which the report of `claim` moved to running."""
    assert row.dispatch_id is not None, "a running task instance has a dispatch"
    own = {name: getattr(row, name) for name in Claim.__slots__ if hasattr(row, name)}
    return replace(claim, **own, resume=None)
