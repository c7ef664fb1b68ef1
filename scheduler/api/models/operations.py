"""The installation at work: explanations, home, queues, workers and pools, and what a part of a name leads to."""

from datetime import datetime
from typing import Literal

from paceline.states import RunState, TaskState
from scheduler.api.models.base import Model, from_row


class Step(Model):
    """A change of state in the past."""

    at: datetime
    #: null: undecided.
    state: TaskState | RunState | None
    #: A process, or an account as api:name.
    actor: str | None
    try_number: int | None
    #: Since the step before.
    seconds: float | None
    text: str


class Why(Model):
    """Why a run or a task instance is in its state, and how it got there."""

    state: TaskState | RunState | None
    #: Sentences: what it waits for now, or how it ended.
    waiting_for: list[str]
    #: In order from the oldest step. Empty if core.record_events is off.
    history: list[Step]


class InstanceWhy(Why):
    """Why a task instance is in its state."""

    map_index: int


class Queue(Model):
    """A queue with its waiting task instances and its workers."""

    queue: str
    #: Scheduled: they wait in PostgreSQL for a slot.
    waiting_in_postgresql: int = from_row("scheduled")
    #: Messages that no worker has taken; null if Redis does not answer.
    waiting_in_redis: int | None
    queued: int
    running: int
    oldest_waiting_at: datetime | None
    workers: list[str] = from_row("worker_names")
    #: Task instances that its workers can run at once.
    places: int = from_row("concurrency")


class QueueList(Model):
    """All queues that have waiting task instances or workers."""

    queues: list[Queue]
    #: The reason why waiting_in_redis is null.
    redis_error: str | None


class Depth(Model):
    """The depth of a queue at a minute."""

    queue: str
    at: datetime
    scheduled: int
    queued: int
    running: int
    places: int


class Depths(Model):
    """The depth of queues over time. Minutes in which nothing waited and nothing ran may be missing."""

    depths: list[Depth]


class Held(Model):
    """A task instance on a worker, or in line for a pool."""

    dag_id: str
    dag_run_id: str = from_row("run_id")
    task_id: str
    map_index: int
    state: TaskState
    try_number: int
    start_date: datetime | None = from_row("started_at")
    scheduled_when: datetime | None = from_row("scheduled_at")
    queued_when: datetime | None = from_row("queued_at")
    pool: str
    pool_slots: int


class Process(Model):
    """A scheduler, a worker or a waiter."""

    id: str
    name: str
    kind: str
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    started_at: datetime
    heartbeat_at: datetime
    stopped_at: datetime | None
    #: alive, silent or stopped.
    state: str
    #: Task instances that it runs.
    running: int
    #: Since when it takes no more tasks, because a person asked it to drain.
    drain_at: datetime | None


class Worker(Process):
    """A worker with its running task instances."""

    tasks: list[Held]


class ProcessList(Model):
    """Processes."""

    processes: list[Process]


class WorkerList(Model):
    """Workers."""

    workers: list[Worker]


class PoolLine(Model):
    """The task instances that hold slots of a pool, and those that wait for slots, the next one first."""

    name: str
    slots: int
    used: int
    holders: list[Held]
    waiting: list[Held]
    #: Of all, which may be more than are listed.
    waiting_count: int


class Hour(Model):
    """Runs that ended in an hour."""

    hour: datetime
    success: int
    failed: int


class TrendBar(Model):
    """Runs that ended in one part of a range of time."""

    #: When the part begins.
    start: datetime
    success: int
    failed: int


class TagTrend(Model):
    """Runs of the DAGs with a tag."""

    tag: str
    bars: list[TrendBar]


class Trend(Model):
    """How runs ended over a range of time. Bars without runs are left out."""

    bars: list[TrendBar]
    #: The tags with the most runs, at most 12.
    tags: list[TagTrend]


class NextRun(Model):
    """The next scheduled run of a DAG."""

    dag_id: str
    run_after: datetime
    logical_date: datetime | None


class RecentRun(Model):
    """A run in a row of bars."""

    dag_run_id: str = from_row("run_id")
    run_type: str
    state: RunState
    run_after: datetime
    start_date: datetime | None = from_row("started_at")
    end_date: datetime | None = from_row("ended_at")


class RunSummary(RecentRun):
    """A running or failed run."""

    dag_id: str


class RunningRun(RunSummary):
    """A running run with its ended and all task instances."""

    ended: int
    total: int


class FailedRun(RunSummary):
    """A failed run with its first failed task instance."""

    task_id: str | None
    map_index: int | None
    reason: str | None


class Deadline(Model):
    """A deadline that is due soon, or that an unfinished run has missed."""

    dag_id: str
    dag_run_id: str = from_row("run_id")
    task_id: str | None
    kind: str
    due_at: datetime
    missed_at: datetime | None


class Waiting(Model):
    """Task instances or runs that wait for the same thing."""

    count: int
    oldest_at: datetime | None
    reason: str
    #: What a person must add: a worker for their queue, or their pool. null: they wait for what ends by itself.
    needs: Literal["worker", "pool"] | None = None
    #: Of task instances: scheduled or queued.
    state: TaskState | None = None
    dag_id: str | None = None
    pool: str | None = None
    queue: str | None = None


class Question(Model):
    """A question of a task without an answer."""

    dag_id: str
    dag_run_id: str = from_row("run_id")
    task_id: str
    map_index: int
    #: null if the task stored something else than a question.
    subject: str | None
    asked_at: datetime


class ProcessState(Model):
    """One process of a kind, for all who may see a DAG."""

    kind: str
    #: alive, silent or stopped.
    state: str
    heartbeat_at: datetime


class Home(Model):
    """The state of the installation, for the home page."""

    #: The time of the database.
    now: datetime
    runs: dict[RunState, int]
    task_instances: dict[TaskState, int]
    running: list[RunningRun]
    failed: list[FailedRun]
    #: The oldest first.
    waiting: list[Waiting]
    #: The oldest ones; question_count counts all.
    questions: list[Question]
    question_count: int
    hours: list[Hour]
    #: Of DAGs that are not paused, the first one first.
    next_runs: list[NextRun]
    deadlines: list[Deadline]
    processes: list[ProcessState]
    import_errors: int


class JumpDag(Model):
    """A DAG."""

    dag_id: str
    is_paused: bool
    #: Whether the account may trigger and pause it.
    may_operate: bool


class JumpTask(Model):
    """A task, with the newest run of its DAG."""

    dag_id: str
    task_id: str
    dag_run_id: str = from_row("run_id")


class JumpRun(Model):
    """A run."""

    dag_id: str
    dag_run_id: str = from_row("run_id")
    state: RunState


class JumpAsset(Model):
    """An asset."""

    id: int
    uri: str


class Jump(Model):
    """The things whose names contain a text, at most eight of each kind: only those that the account may see."""

    dags: list[JumpDag]
    tasks: list[JumpTask]
    runs: list[JumpRun]
    assets: list[JumpAsset]
    connections: list[str]
    variables: list[str]
    #: Settings as section.key.
    settings: list[str]
