"""States, the ONE table of transitions (from, to, actor, statement), and the records that deciding and the store exchange.

The database constraints, the chart in docs/reference/states.md and the test of every pair of states are views of this file.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Self, TypeVar


class TaskState(StrEnum):
    """The state of a task instance (TI). NONE is stored as SQL NULL."""

    # The comment of a state names the processes and persons that move a task instance to another one.
    NONE = "none"  # the scheduler or a following worker, once its trigger rule decides
    SCHEDULED = "scheduled"  # the scheduler, once its pool has capacity; fast-follow can go from none to queued directly
    QUEUED = "queued"  # the worker that claims it; the scheduler, if the message is lost for good
    RUNNING = "running"  # its worker; the scheduler only when that worker is lost
    SUCCESS = "success"  # a person, by clearing
    FAILED = "failed"  # a person, by clearing
    UP_FOR_RETRY = "up_for_retry"  # the scheduler, when the delay is over
    UP_FOR_RESCHEDULE = "up_for_reschedule"  # the scheduler, when the next poke is due
    DEFERRED = "deferred"  # the waiter, when its trigger fires; the scheduler, when the trigger's timeout is over
    UPSTREAM_FAILED = "upstream_failed"  # a person, by clearing
    SKIPPED = "skipped"  # a person, by clearing
    REMOVED = "removed"  # the scheduler, if the task comes back
    SHUTDOWN = "shutdown"  # its worker, which stops it and sets the requested state; the scheduler if that worker is lost


class RunState(StrEnum):
    """The state of a DAG run."""

    QUEUED = "queued"  # promote starts it within max_active_runs
    RUNNING = "running"  # the worker of its last task closes it, or promote
    SUCCESS = "success"
    FAILED = "failed"


class Actor(StrEnum):
    """The parts of Paceline that change the state of a task instance, and the person who clears or marks it."""

    #: The process that creates a run: a command, a web process, a worker or a scheduler.
    CREATOR = "creator"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    FOLLOWER = "follower"
    WAITER = "waiter"
    PERSON = "person"


S = TaskState
T = TypeVar("T", bound=StrEnum)


class States(frozenset[T]):
    """A set of states. `sql` is its SQL list, as in `state in (...)`, in the order of the enum."""

    sql: str

    def __new__(cls, states: Iterable[T]) -> Self:
        self = super().__new__(cls, states)
        if not self or S.NONE in self:
            raise ValueError("NONE is stored as NULL, which no list of states matches: use `or_none`.")
        kind = type(next(iter(self)))
        self.sql = "(" + ", ".join(f"'{state}'" for state in kind if state in self) + ")"
        return self

    def or_none(self, column: str) -> str:
        """SQL: the column has one of these states or NONE."""
        return f"({column} is null or {column} in {self.sql})"


#: Unfinished states in which no worker has the TI: a person can clear or mark it at once, like an undecided one.
_IDLE = "scheduled queued up_for_retry up_for_reschedule deferred"
_ENDED = "success failed skipped upstream_failed"

FINISHED = States({S.SUCCESS, S.FAILED, S.SKIPPED, S.UPSTREAM_FAILED, S.REMOVED})
UNFINISHED = frozenset(S) - FINISHED
#: UNFINISHED without NONE.
OPEN = States(UNFINISHED - {S.NONE})
IDLE = States(map(S, _IDLE.split()))
#: A TI in one of these waits until its due_at, and the scheduler then makes it scheduled.
DELAYED = States({S.UP_FOR_RETRY, S.UP_FOR_RESCHEDULE})
#: The scheduler moves a TI in one of these at its due_at.
DUE = States(DELAYED | {S.DEFERRED})
#: A TI in one of these waits without a worker, and continues with the same try.
SUSPENDED = States({S.UP_FOR_RESCHEDULE, S.DEFERRED})
#: A TI in one of these waits for slots or for a worker.
WAITS_FOR_WORKER = States({S.SCHEDULED, S.QUEUED})
#: A TI in one of these holds `pool_slots` of its pool.
HOLDS_SLOTS = States({S.QUEUED, S.RUNNING, S.SHUTDOWN})
#: A TI in one of these counts towards max_active_tis_per_dag and max_active_tis_per_dagrun.
ACTIVE = States(HOLDS_SLOTS | {S.DEFERRED})
#: A worker has a TI in one of these, so it can end at any moment.
STARTED = States({S.RUNNING, S.SHUTDOWN})
#: The newest try of a TI in one of these has not begun; it can still write to its log in one of the others.
NOT_BEGUN = WAITS_FOR_WORKER | {S.NONE}
CAN_LOG = NOT_BEGUN | STARTED
#: Clearing or marking a TI in one of these does not move it at once: its worker stops it first, or its task is gone.
NOT_CLEARABLE = States(STARTED | {S.REMOVED})
#: A person can mark a TI with one of these.
MARKABLE = States({S.SUCCESS, S.FAILED, S.SKIPPED})
#: The task did not fail: it meets its SLA, and the next run need not wait for it.
PASSED = States({S.SUCCESS, S.SKIPPED})
#: Final states that are decided without a worker.
NEVER_RUN = States({S.SKIPPED, S.UPSTREAM_FAILED})
#: A try that failed leaves its TI in one of these.
TRY_FAILED = States({S.FAILED, S.UP_FOR_RETRY})
FAILURES = States({S.FAILED, S.UPSTREAM_FAILED})
RUN_FINISHED = States({RunState.SUCCESS, RunState.FAILED})
RUN_UNFINISHED = States({RunState.QUEUED, RunState.RUNNING})
#: The default of max_active_runs of a backfill.
BACKFILL_MAX_ACTIVE_RUNS = 10
#: By the value of `--reprocess`: the states of existing runs that a backfill runs again. Every other run stays as it is.
REPROCESS: Mapping[str, frozenset[RunState]] = {
    "none": frozenset(),
    "failed": frozenset({RunState.FAILED}),
    "completed": RUN_FINISHED,
}


@dataclass(frozen=True, slots=True)
class Transition:
    """One allowed change of state of a task instance."""

    source: TaskState
    target: TaskState
    actor: Actor
    #: The file of scheduler/store/moves with the statement that makes it.
    statement: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Move the undecided (NONE) task instance `map_index` of task number `task_no` to `state`, because of `reason`."""

    task_no: int
    state: TaskState
    reason: str
    map_index: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A scheduled task instance. Higher rank first, then the older (smaller) id."""

    id: int
    rank: float
    dag_id: str
    dag_run_id: int
    task_id: str
    pool: str
    pool_slots: int
    queue: str
    #: max_active_tasks of its run.
    run_limit: int
    #: max_active_tis_per_dag and max_active_tis_per_dagrun of its task.
    task_limit: int | None = None
    task_in_run_limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branched:
    """A branch task that succeeded, and the IDs of the tasks that it decided to skip."""

    #: The task that the gate of a loop skips to end the loop. No task has this ID.
    LOOP_STOP: ClassVar = "loop:stop"
    task_no: int
    map_index: int = -1
    skip: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The previous run of the DAG: the states of its task instances (every map index) by task_id. Removed ones do not count."""

    run_id: str
    states: Mapping[str, Collection[TaskState]]
    #: For a task without an instance in the previous run: the newest earlier run that has one.
    earlier: Mapping[str, "Before"] = field(default_factory=dict)


def _moves(actor: Actor, statement: str, sources: str, targets: str, reason: str) -> list[Transition]:
    pairs = [(S(source), S(target)) for source in sources.split() for target in targets.split()]
    return [Transition(source, target, actor, statement, reason) for source, target in pairs if source is not target]


TRANSITIONS: tuple[Transition, ...] = (
    *_moves(Actor.CREATOR, "first", "none", "scheduled", "it is one of the first tasks of the run"),
    *_moves(Actor.CREATOR, "first", "none", "queued", "the same, and its pool and all its limits have capacity"),
    *_moves(Actor.SCHEDULER, "decide", "none", "scheduled", "its trigger rule is met"),
    *_moves(Actor.SCHEDULER, "decide", "none", "skipped upstream_failed", "its trigger rule can no longer be met"),
    *_moves(Actor.SCHEDULER, "expand", "none", "skipped", "it is mapped, and there is nothing to map over"),
    *_moves(Actor.SCHEDULER, "due", "up_for_retry up_for_reschedule", "scheduled", "its delay is over"),
    *_moves(Actor.SCHEDULER, "due", "deferred", "scheduled", "its trigger did not fire in time"),
    *_moves(Actor.SCHEDULER, "queue", "scheduled", "queued", "its pool and all its limits have capacity"),
    *_moves(Actor.SCHEDULER, "lose", "running", "up_for_retry failed", "its worker is lost"),
    *_moves(Actor.SCHEDULER, "stop", "running", "shutdown", "its run ended early: dagrun_timeout, fail_fast"),
    *_moves(Actor.SCHEDULER, "stop", f"none {_IDLE}", "skipped", "its run ended early: fail_fast"),
    *_moves(Actor.SCHEDULER, "mark", f"none {_IDLE}", "skipped", "its run ended early: dagrun_timeout"),
    *_moves(Actor.SCHEDULER, "stop", "shutdown", "none success failed skipped", "its worker is lost: the requested state"),
    *_moves(Actor.SCHEDULER, "fit", f"none {_IDLE} {_ENDED}", "removed", "the new DAG version of the run has no such task"),
    *_moves(Actor.SCHEDULER, "fit", "removed", "none", "the task came back"),
    *_moves(Actor.FOLLOWER, "report", "none", "scheduled", "its trigger rule is met"),
    *_moves(Actor.FOLLOWER, "report", "none", "queued", "its trigger rule is met and it takes over the slots of the upstream task"),
    *_moves(Actor.FOLLOWER, "report", "none", "skipped upstream_failed", "its trigger rule can no longer be met"),
    *_moves(Actor.FOLLOWER, "report", "scheduled", "queued", "it is next in line and takes over the slots of a task of its run"),
    *_moves(Actor.FOLLOWER, "report", "none scheduled", "running", "the same, in the process of the task that ended"),
    *_moves(Actor.WORKER, "claim", "queued", "running", "claimed"),
    *_moves(Actor.WORKER, "report", "running", "success failed skipped up_for_retry", "the outcome of the try"),
    *_moves(Actor.WORKER, "suspend", "running", "up_for_reschedule deferred", "it waits without occupying a worker"),
    *_moves(Actor.WORKER, "stop", "shutdown", "none success failed skipped", "stopped: the requested state"),
    *_moves(Actor.WAITER, "fire", "deferred", "scheduled", "its trigger fired"),
    *_moves(Actor.PERSON, "clear", f"{_IDLE} {_ENDED}", "none", "cleared"),
    *_moves(Actor.PERSON, "mark", f"none {_IDLE} {_ENDED}", "success failed skipped", "marked"),
    *_moves(Actor.PERSON, "stop", "running", "shutdown", "cleared or marked: the worker stops it first"),
)  # fmt: skip
