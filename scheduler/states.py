"""States, the ONE table of transitions (from, to, and who may do it), and what deciding and the store hand each other.

The database constraints, the chart in docs/reference/states.md and the test of every pair of states are views of this file.
"""

from dataclasses import dataclass
from enum import StrEnum


class TaskState(StrEnum):
    """Where a task instance (TI) is; the comment says who moves it on. NONE is stored as SQL NULL."""

    NONE = "none"  # the scheduler or a following worker, once its trigger rule decides
    SCHEDULED = "scheduled"  # the scheduler, once its pool has room; a following worker skips this stop
    QUEUED = "queued"  # the worker that claims it; the scheduler, if the message is lost for good
    RUNNING = "running"  # its worker; the scheduler only when that worker is dead
    SUCCESS = "success"  # a person, by clearing
    FAILED = "failed"  # a person, by clearing
    UP_FOR_RETRY = "up_for_retry"  # the scheduler, when the delay is over
    UP_FOR_RESCHEDULE = "up_for_reschedule"  # the scheduler, when the next poke is due
    UPSTREAM_FAILED = "upstream_failed"  # a person, by clearing
    SKIPPED = "skipped"  # a person, by clearing
    REMOVED = "removed"  # the scheduler, if the task comes back
    SHUTDOWN = "shutdown"  # its worker, which does what was asked; the scheduler if that worker is dead


class RunState(StrEnum):
    """Where a DAG run is."""

    QUEUED = "queued"  # promote starts it within max_active_runs
    RUNNING = "running"  # promote closes it when no task instance is left to finish
    SUCCESS = "success"
    FAILED = "failed"


class Actor(StrEnum):
    """Who may move a task instance."""

    SCHEDULER = "scheduler"
    WORKER = "worker"
    FOLLOWER = "follower"
    PERSON = "person"


S = TaskState

FINISHED = frozenset({S.SUCCESS, S.FAILED, S.SKIPPED, S.UPSTREAM_FAILED, S.REMOVED})
UNFINISHED = frozenset(S) - FINISHED
#: A TI in one of these holds `pool_slots` of its pool.
HOLDS_SLOTS = frozenset({S.QUEUED, S.RUNNING, S.SHUTDOWN})
#: A TI in one of these is with a worker, so it can end at any moment.
STARTED = frozenset({S.RUNNING, S.SHUTDOWN})
FAILURES = frozenset({S.FAILED, S.UPSTREAM_FAILED})
RUN_FINISHED = frozenset({RunState.SUCCESS, RunState.FAILED})


@dataclass(frozen=True, slots=True)
class Transition:
    """One allowed move of a task instance."""

    source: TaskState
    target: TaskState
    actor: Actor
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Move the undecided (NONE) task instance of task number `task_no` to `state`, because of `reason`."""

    task_no: int
    state: TaskState
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A scheduled task instance. Rank: higher priority_weight first, then the older (smaller) id."""

    id: int
    dag_run_id: int
    pool: str
    pool_slots: int
    queue: str
    priority_weight: int
    #: max_active_tasks of its run.
    run_limit: int


def _moves(actor: Actor, sources: str, targets: str, reason: str) -> list[Transition]:
    return [Transition(S(source), S(target), actor, reason) for source in sources.split() for target in targets.split()]


TRANSITIONS: tuple[Transition, ...] = (
    *_moves(Actor.SCHEDULER, "none", "scheduled", "its trigger rule is met"),
    *_moves(Actor.SCHEDULER, "none", "skipped upstream_failed", "its trigger rule can no longer be met"),
    *_moves(Actor.SCHEDULER, "up_for_retry", "scheduled", "its waiting time is over"),
    *_moves(Actor.SCHEDULER, "scheduled", "queued", "its pool, DAG and task have room"),
    *_moves(Actor.SCHEDULER, "running", "up_for_retry failed", "its worker is dead"),
    *_moves(Actor.FOLLOWER, "none", "scheduled", "its trigger rule is met"),
    *_moves(Actor.FOLLOWER, "none", "queued", "its trigger rule is met and it inherits the slots of the task before"),
    *_moves(Actor.FOLLOWER, "none", "skipped upstream_failed", "its trigger rule can no longer be met"),
    *_moves(Actor.WORKER, "queued", "running", "claimed"),
    *_moves(Actor.WORKER, "running", "success failed skipped up_for_retry", "the outcome of the try"),
)  # fmt: skip

#: Columns of task_instance that must not be NULL in a state (a CHECK each, see store/tables.py).
REQUIRES: dict[TaskState, tuple[str, ...]] = {
    S.SCHEDULED: ("scheduled_at",),
    S.QUEUED: ("queued_at", "dispatch_id", "queued_by"),
    S.RUNNING: ("started_at", "dispatch_id", "worker"),
    S.SHUTDOWN: ("started_at", "dispatch_id", "worker"),
    S.UP_FOR_RETRY: ("due_at",),
    S.UP_FOR_RESCHEDULE: ("due_at",),
    S.SUCCESS: ("ended_at",),
    S.FAILED: ("ended_at",),
    S.SKIPPED: ("ended_at",),
    S.UPSTREAM_FAILED: ("ended_at",),
}


def allowed(source: TaskState, target: TaskState) -> frozenset[Actor]:
    """Who may move a TI from `source` to `target`; empty if nobody may."""
    return frozenset(move.actor for move in TRANSITIONS if (move.source, move.target) == (source, target))
