"""The situation of one task instance, from which `why` creates its sentences. store/queries/why.py reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.states import RunState, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A task that is waited for, with the number of its instances in each state."""

    task_id: str
    states: Mapping[TaskState, int]
    #: More than one instance, or the instance of a mapped task.
    mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A task instance that holds slots of a pool. Both names are None if the account may not see its DAG."""

    name: str | None
    run_id: str | None
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The pool of the task instance, the first few holders of its slots, and the number of task instances before it in line."""

    name: str
    #: -1: without limit.
    slots: int
    used: int
    holders: tuple[Holder, ...] = ()
    holder_count: int = 0
    #: Scheduled task instances of higher rank in the same pool.
    ahead: int = 0
    #: The task instance of higher rank that does not fit. No other one of lower rank may pass it.
    reserved_for: Holder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """A number that may not be passed, and how many count towards it now."""

    name: str
    limit: int
    active: int

    @property
    def reached(self) -> bool:
        return self.active >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The Celery queue: live workers that listen, their pool children, and the task instances with them."""

    name: str
    workers: int
    places: int
    running: int
    queued: int
    #: Messages a queue may hold beyond the places of its workers.
    headroom: int
    #: Queued task instances whose message was sent before this one's.
    ahead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFacts:
    """The backfill that created the run."""

    id: int
    is_paused: bool
    limit: LimitFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run, its DAG, and the conditions of its start."""

    dag_id: str
    run_id: str
    state: RunState
    run_after: datetime
    is_paused: bool = False
    #: Of the DAG's newest version.
    running_runs: LimitFacts | None = None
    #: Queued runs of the same DAG that start before this one.
    runs_ahead: int = 0
    backfill: BackfillFacts | None = None
    file: str = ""
    #: Why the schedulers cannot decide the run.
    scheduling_error: str | None = None
    #: The import error of the DAG's file.
    import_error: str | None = None
    import_error_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralFacts:
    """The trigger a deferred task instance waits for."""

    classpath: str
    #: The waiter that awaits it, None if none has taken it.
    waiter: str | None = None
    waiters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that can hold a task instance back. The defaults hold nothing back."""

    now: datetime
    run: RunFacts
    task_id: str
    map_index: int
    state: TaskState
    try_number: int = 0
    max_tries: int = 0
    #: Why it is in its state, as the change to it recorded.
    reason: str | None = None
    due_at: datetime | None = None
    queued_at: datetime | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    worker_alive: bool = True
    #: The state that follows a shutdown.
    asked: str | None = None
    schedulers: int = 1
    trigger_rule: str = "all_success"
    #: Direct upstream tasks; of a task in a mapped group, the instance of the same index.
    upstream: tuple[Counted, ...] = ()
    setups: tuple[Counted, ...] = ()
    #: Of a teardown: the tasks between its setups and itself.
    scope: tuple[Counted, ...] = ()
    #: Mapped and not expanded yet: the tasks whose results give the number of instances.
    expands_over: tuple[Counted, ...] | None = None
    #: Of a task in a loop, after the first iteration: the gate that ends the iteration before.
    loop_gate: Counted | None = None
    #: The task instances that it waits for in the previous run, see deciding/past.
    past: str | None = None
    pool_name: str = "default_pool"
    pool_slots: int = 1
    #: None: there is no such pool.
    pool: PoolFacts | None = None
    limits: tuple[LimitFacts, ...] = ()
    queue: QueueFacts | None = None
    deferral: DeferralFacts | None = None
    #: Its instances by state, if the question is about the whole task.
    instances: Mapping[TaskState, int] = field(default_factory=dict)
