"""What a worker and the store hand each other about one dispatch: the claim, how it ended, what moved because of it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.states import Decision, TaskState
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What to move together with a report; `heir` is the place in `decisions` of the one that inherits the slots.

    `dispatch_id` is that of whoever gets the slots, the heir or the next that waits for them; None gives them to nobody.
    """

    decisions: Sequence[Decision] = ()
    successor: int | None = None
    dispatch_id: str | None = None
    #: Numbers of tasks that some branch may skip.
    below_branch: Collection[int] = frozenset()
    #: Tasks below, of which is asked whether they wait for a task that no worker has. If one of the first does not, nothing is
    #: stored: it may be ready, and is decided under locks.
    joins: Sequence[int] = ()
    left: Sequence[int] = ()


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
    """What a report did: others wait for slots of the pool; task instances of the run no worker has; what moved below it; and
    which one, that waited before, the slots were handed on to.
    """

    pool_has_waiting: bool
    others_wait: bool
    moved: tuple[Moved, ...]
    handed_on: Moved | None = None
    #: Those of Moves.joins and Moves.left that wait for a task which no worker has.
    waiting: frozenset[int] = frozenset()
    #: Whether each of Moves.decisions moved something.
    all_moved: bool = True


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing was stored: one of Moves.joins is not among these, which wait for a task that no worker has."""

    waiting: frozenset[int]
