"""The records of one dispatch that a worker and the store exchange: the claim, its end, and the task instances it moved."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Connection

from paceline.states import TaskState
from scheduler.store.db.fencing import Writer
from scheduler.store.db.rows import Reader

FIRST_START = """
select started_at from task_try
 where task_instance_id = %s and try_number >= %s and started_at is not null order by try_number limit 1
"""
#: Records that there is no crash from this moment on. It is run on new connections and regularly, and keeps an existing row.
#: A claim does not wait for the disk, so a crash may undo it (ADR 4). The only row of the unlogged table `crash_free` is gone after
#: a crash of the server, of a single backend, or of the primary before a failover, because PostgreSQL empties unlogged tables when
#: it recovers. After a clean shutdown, the row and all claims exist.
NOTE_CRASH_FREE = "insert into crash_free select clock_timestamp() where not exists (select from crash_free) on conflict do nothing"


#: The type of a run that repeats another one, see store/runs/reproductions.
REPRODUCTION = "reproduction"


# A claim and the rows of a report are created for each task, and a frozen dataclass takes four times as long. Nothing changes them.


@dataclass(slots=True)
class Claim:
    """A task instance that this pool process may run, with all data for running it."""

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
    #: The data that an earlier dispatch of this try stored: the pokes of a sensor, or the event of a trigger.
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
    partition_key: str | None = None
    partition_date: datetime | None = None

    @property
    def writer(self) -> Writer:
        """The author of the writes of this dispatch."""
        return Writer(self.id, self.dispatch_id, self.try_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """The trigger of a deferred task instance: its class, the arguments that create it again, and the DAG file if the class is
    defined there.
    """

    classpath: str
    kwargs: dict[str, Any]
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a dispatch: the new state, the reason, the return value as JSON, and the seconds until it is due again."""

    state: TaskState
    reason: str | None = None
    result: str | None = None
    delay_s: float | None = None
    #: The IDs of the tasks that a branch skips; None if the task is not a branch.
    skip: tuple[str, ...] | None = None
    #: The data from which the next dispatch of this try continues.
    resume: dict[str, Any] | None = None
    deferral: Deferral | None = None
    #: The catalog in which the report publishes the tables of the try; None if the try was given no access to it.
    tables: str | None = None


@dataclass(frozen=True, slots=True)
class NextInPlace:
    """The dispatch with which a report may let its process continue with another task instance, in place.

    Its ID is chosen before the report, so that a lost answer can be read again.
    """

    dispatch_id: str
    #: Whether the process may still continue. A report that had to wait asks again: its worker may be stopping by then.
    is_allowed: Callable[[], bool] = lambda: True
    #: The next task must go by message. An earlier attempt of the report may have continued nevertheless.
    withdrawn: bool = False

    def asked_again(self) -> "NextInPlace":
        """The same dispatch, withdrawn if the process may not continue any more."""
        return replace(self, withdrawn=not self.is_allowed())


@dataclass(slots=True)
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


@dataclass(slots=True)
class MovedInPlace(Moved):
    """A moved task instance, with further columns that a claim returns."""

    task_no: int
    try_number: int
    max_tries: int
    started_at: datetime
    #: The version of the DAG in which it has its number.
    version_id: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A report that was stored."""

    #: Whether others wait for slots of the pool.
    pool_has_waiting: bool
    #: Whether the run has task instances that no worker has.
    others_wait: bool
    #: The downstream task instances that it moved.
    moved: tuple[Moved, ...] = ()
    #: The waiting task instance that got the slots.
    slots_passed_to: Moved | None = None
    #: The claim of the task instance that continues in place.
    continues: Claim | None = None
    #: The tasks in Plan.asked with an upstream task that no worker has claimed.
    waiting: frozenset[int] = frozenset()
    #: Whether each of Plan.settled moved something, and the run still has the version of the plan.
    all_moved: bool = True
    is_stored: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing was stored: a join missing from `waiting` may be ready and must be decided under locks."""

    waiting: frozenset[int]
    continues: ClassVar[None] = None
    is_stored: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was stored: the task instance does not run under this dispatch, or no longer."""

    #: Whether an earlier report of this end is stored, although its answer was lost.
    is_stored: bool
    #: The claim of the task instance that it moved to running in place. It continues even if the end was cleared or marked since:
    #: no other process runs it.
    continues: Claim | None = None
    waiting: ClassVar[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAfter:
    """A run after an attempt to close it."""

    state: str
    #: Whether a task instance is unfinished.
    goes_on: bool
    #: Whether another run of its DAG waits to start.
    others_wait: bool


@dataclass(slots=True)
class ReportRow(MovedInPlace):
    """A row of the report statement: a moved task instance (all NULL if there is none), and values that are equal in all rows."""

    waiting: list[int]
    pool_has_waiting: bool
    #: None if the report was rejected.
    others_wait: bool | None
    #: Whether the run is running in the version of the claim.
    run_goes_on: bool | None
    #: Whether it waited before, and got the slots.
    was_waiting: bool | None


def first_start(connection: Reader, claim: Claim, first_try: int) -> datetime:
    """When the try with this number, or the first one after it, started. The try of the claim is not in the history yet."""
    started: datetime = connection.value(FIRST_START, (claim.id, first_try), claim.started_at)
    return started


def note_crash_free(connection: Connection) -> None:
    """Run NOTE_CRASH_FREE."""
    connection.exec_driver_sql(NOTE_CRASH_FREE)


def crash_settled(connection: Connection, *, seconds: float) -> bool:
    """Whether the last crash was at least `seconds` ago, so that workers have repeated the claims that it undid."""
    return bool(
        connection.exec_driver_sql(
            "select exists (select from crash_free where since < clock_timestamp() - make_interval(secs => %s))", (seconds,)
        ).scalar_one()
    )
