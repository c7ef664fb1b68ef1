"""What a worker and the store exchange about one dispatch: the claim, how it ended, and what moved because of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.states import TaskState
from scheduler.store.db.fencing import Writer


@dataclass(frozen=True, slots=True)
class Claim:
    """A task instance that this child may run, with all that running it needs."""

    id: int
    dispatch_id: str
    task_id: str
    map_index: int
    task_no: int
    try_number: int
    max_tries: int
    queue: str
    pool: str
    pool_slots: int
    priority_weight: int
    started_at: datetime
    #: What an earlier dispatch of this try left behind: the pokes of a sensor, the event of a trigger.
    resume: dict[str, Any] | None
    dag_run_id: int
    dag_id: str
    run_id: str
    run_type: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    run_after: datetime
    run_started_at: datetime | None
    conf: dict[str, Any]
    version_id: int

    @property
    def writer(self) -> Writer:
        """Who writes what this dispatch stores."""
        return Writer(self.id, self.dispatch_id, self.try_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """The trigger a deferred task instance waits for: its class, the arguments that make it again, and the DAG file if the
    class is defined there.
    """

    classpath: str
    kwargs: dict[str, Any]
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a dispatch ended: the new state, why, the JSON text of the return value, and seconds until it is due again."""

    state: TaskState
    reason: str | None = None
    result: str | None = None
    delay_s: float | None = None
    #: Ids of the tasks that a branch skips; None for what is no branch.
    skip: tuple[str, ...] | None = None
    #: What the next dispatch of this try goes on from.
    resume: dict[str, Any] | None = None
    deferral: Deferral | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """A task instance of the run that a report moved, and to which state."""

    id: int
    task_id: str
    map_index: int
    queue: str
    priority_weight: int
    dispatch_id: str | None
    state: TaskState
    pool: str
    pool_slots: int


@dataclass(frozen=True, slots=True)
class Reported:
    """What a report did: whether others wait for slots of the pool; whether the run has task instances that no worker has; what
    moved below it; and which task instance, that was waiting before, got the slots.
    """

    pool_has_waiting: bool
    others_wait: bool
    moved: tuple[Moved, ...]
    handed_on: Moved | None = None
    #: Those of Moves.asked that wait for a task which no worker has.
    waiting: frozenset[int] = frozenset()
    #: Whether each of Moves.decisions moved something.
    all_moved: bool = True


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing was stored: one of Moves.joins is not among these, which wait for a task that no worker has."""

    waiting: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow(Moved):
    """A row of the report statement: what moved (all NULL if nothing did), and what is the same in each row."""

    waiting: list[int]
    pool_has_waiting: bool
    #: None if the report was refused.
    others_wait: bool | None
    #: Whether it waited before, and got the slots.
    was_waiting: bool | None


@dataclass(frozen=True, slots=True)
class UpstreamCount:
    """How many upstream task instances of a join are in one state."""

    task_no: int
    state: TaskState
    instances: int


@dataclass(frozen=True, slots=True)
class Peer:
    """The state of a task instance with the same map index in the same mapped group."""

    task_no: int
    state: TaskState
