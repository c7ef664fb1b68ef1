"""The running tasks of a worker, in memory that pool processes share with their parent, so that it survives their death.

Each pool process has a slot. It writes the task that it runs, and the parent writes the dispatch to stop. Neither waits for the
other: a slot reads as empty while it is being written. A pool process that continues with tasks in place also writes their IDs,
because its parent has only the message.
"""

import math
import mmap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps, loads
from typing import Any

from scheduler.store.upkeep.heartbeats import boottime

SLOT_BYTES = 16384
#: The offsets of the parts of a slot.
RUNNING_AT, STOP_AT, IN_PLACE_AT, IN_HAND_AT, STEP_AT = 0, 6144, 8192, 8704, 8832
#: The end of each part.
ENDS = {RUNNING_AT: STOP_AT, STOP_AT: IN_PLACE_AT, IN_PLACE_AT: IN_HAND_AT, IN_HAND_AT: STEP_AT, STEP_AT: SLOT_BYTES}
#: Bytes in the first slot, which is the worker's. A signal handler may set them.
DRAINING_AT, EVENTS_AT = IN_PLACE_AT, IN_PLACE_AT + 1
LENGTH_BYTES = 4
#: The longest time between the claim of a dispatch in the database and in the slot, in seconds.
CLAIM_S = 1.0
#: Attempts to read a slot that is being written.
READS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """User code that a pool process runs. `deadline` is on the monotonic clock, which all processes of a machine share."""

    ti_id: int
    dispatch_id: str
    pid: int
    log: str
    deadline: float | None = None
    #: It may run only while `worker`, which claimed it, has a lease.
    exclusive: bool = False
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """The work of a pool process since it received the message of the dispatch `message`: `dispatch_id`, whose report may continue
    with another task instance under `next_dispatch_id`.
    """

    message: str
    ti_id: int
    dispatch_id: str
    next_dispatch_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A pool process that received `message` has ended a task after `seconds`, and runs another dispatch in place."""

    message: str
    seconds: float
    ti_id: int
    dispatch_id: str
    #: The task, and its run, as Flower shows them.
    name: str
    arguments: str
    #: Seconds since 1970.
    started_at: float


class RunningTasks:
    """Slots for `children` pool processes. Create it before they are forked."""

    def __init__(self, children: int) -> None:
        self._children = children
        self._memory = mmap.mmap(-1, (children + 1) * SLOT_BYTES)

    @property
    def worker_id(self) -> str:
        """The registered ID with which the pool processes of this worker claim and report."""
        registered: str | None = self._read(0, STOP_AT)
        assert registered is not None, "the worker registers before it forks"
        return registered

    @worker_id.setter
    def worker_id(self, worker_id: str) -> None:
        self._write(0, STOP_AT, worker_id)

    def lease(self, worker_id: str, until: float) -> None:
        """Allow exclusive tasks of this worker to run until that time of `boottime`."""
        self._write(0, RUNNING_AT, [worker_id, until])

    def has_lease(self, worker_id: str) -> bool:
        """Whether exclusive tasks claimed by this worker may run now."""
        for _ in range(READS):
            if (lease := self._read(0, RUNNING_AT)) is not None:
                return bool(lease[0] == worker_id and boottime() < lease[1])
            time.sleep(0.001)  # it is being written
        return False

    def unleased(self) -> list[Running]:
        """Return the exclusive tasks that run without a lease."""
        return [task for task in self.running() if task.exclusive and not self.has_lease(task.worker)]

    def slot(self, index: int) -> "Slot":
        """Return the slot of the pool process with this number, starting at 0."""
        return Slot(self, 1 + index % self._children)

    def running(self) -> list[Running]:
        """Return the tasks that all pool processes run now."""
        return [task for _, task in self._each()]

    def remove(self, dispatch_id: str) -> Running | None:
        """Remove and return the entry of a dispatch whose pool process has died. Another process may soon have its process ID."""
        for place, task in self._each():
            if task.dispatch_id == dispatch_id:
                self._write(place, RUNNING_AT, None)
                return task
        return None

    def in_place(self, message: str) -> InPlace | None:
        """The work of the pool process that received this message, even if it has died; None if it has only run the task of the
        message.
        """
        entry = self._of_message(IN_PLACE_AT, message)
        return None if entry is None else InPlace(**entry)

    def claimed(self) -> dict[str, int]:
        """The dispatches that pool processes have claimed and not yet reported, with the IDs of their task instances.

        It includes those whose user code has ended, but whose report waits for the database.
        """
        return {dispatch_id: ti_id for dispatch_id, ti_id in self._in_hand() if ti_id is not None}

    def in_progress(self) -> set[str]:
        """The dispatches that pool processes have received and not yet reported, and those with which they may continue."""
        return {dispatch_id for dispatch_id, _ in self._in_hand()} | self._offered()

    def _in_hand(self) -> list[tuple[str, int | None]]:
        running = [(task.dispatch_id, task.ti_id) for task in self.running()]
        return running + [(entry[0], entry[1]) for _, entry in self._entries(IN_HAND_AT)]

    def _offered(self) -> set[str]:
        """The dispatches with which pool processes may continue, but have not begun. Each waits for its report, or for Redis."""
        offers = {entry["next_dispatch_id"] for _, entry in self._entries(IN_PLACE_AT)}
        return offers - {entry["dispatch_id"] for _, entry in self._entries(STEP_AT)}

    def step(self, message: str) -> Step | None:
        """The last task instance with which the pool process continued that received this message; None if there is none."""
        entry = self._of_message(STEP_AT, message)
        return None if entry is None else Step(**entry)

    @property
    def draining(self) -> bool:
        """Whether the worker takes no more tasks, so that its pool processes continue with none."""
        return self._memory[DRAINING_AT] != 0

    def drain(self) -> None:
        """See `draining`. Safe in a signal handler."""
        self._memory[DRAINING_AT] = 1

    @property
    def events(self) -> bool:
        """Whether the worker sends events of its tasks, because Flower has turned them on."""
        return self._memory[EVENTS_AT] != 0

    @events.setter
    def events(self, wanted: bool) -> None:
        self._memory[EVENTS_AT] = wanted

    def ask_stop(self, dispatch_id: str, reason: str) -> Running | None:
        """Write the reason to stop for the pool process that runs `dispatch_id`. Returns its entry if it still runs."""
        for place, task in self._each():
            if task.dispatch_id == dispatch_id:
                self._write(place, STOP_AT, [dispatch_id, reason])
                return task
        return None

    def _of_message(self, part: int, message: str) -> dict[str, Any] | None:
        return next((entry for _, entry in self._entries(part) if entry["message"] == message), None)

    def _each(self) -> Iterator[tuple[int, Running]]:
        return ((place, Running(**entry)) for place, entry in self._entries(RUNNING_AT))

    def _entries(self, part: int) -> Iterator[tuple[int, Any]]:
        """The places of the pool processes whose slot has an entry in that part, with the entry."""
        for place in range(1, self._children + 1):
            if (entry := self._read(place, part)) is not None:
                yield place, entry

    def _read(self, place: int, part: int) -> Any:
        start = place * SLOT_BYTES + part
        length = int.from_bytes(self._memory[start : start + LENGTH_BYTES], "little")
        if length == 0:
            return None
        try:
            return loads(self._memory[start + LENGTH_BYTES : start + LENGTH_BYTES + length])
        except ValueError:  # it is being written
            return None

    def _write(self, place: int, part: int, value: object) -> None:
        start = place * SLOT_BYTES + part
        capacity = ENDS[part] - part - LENGTH_BYTES
        data = b"" if value is None else dumps(value, ensure_ascii=False).encode()
        assert len(data) <= capacity, f"{len(data)} bytes do not fit into a part of a slot"
        self._memory[start : start + LENGTH_BYTES] = bytes(LENGTH_BYTES)
        self._memory[start + LENGTH_BYTES : start + LENGTH_BYTES + len(data)] = data
        self._memory[start : start + LENGTH_BYTES] = len(data).to_bytes(LENGTH_BYTES, "little")


class Slot:
    """The slot of one pool process in the running tasks."""

    def __init__(self, running_tasks: RunningTasks, place: int) -> None:
        self._running_tasks = running_tasks
        self._place = place

    @property
    def worker_id(self) -> str:
        return self._running_tasks.worker_id

    def await_lease(self, worker_id: str, within_s: float = math.inf) -> None:
        """Wait until exclusive tasks of this worker may run, for at most `within_s` seconds."""
        deadline = time.monotonic() + within_s
        while not self._running_tasks.has_lease(worker_id) and time.monotonic() < deadline:
            time.sleep(0.02)

    def take(self, dispatch_id: str, ti_id: int | None = None) -> None:
        """Record the dispatch that this process has received; with its task instance once it is claimed."""
        self._running_tasks._write(self._place, IN_HAND_AT, [dispatch_id, ti_id])

    def is_ours(self, dispatch_id: str) -> bool:
        """Whether this process has claimed a dispatch that a process of this worker has claimed.

        Another one that has received it too either claims it at once, or puts it down.
        """
        deadline = time.monotonic() + CLAIM_S
        while others := {place: ti_id for place, (held, ti_id) in self._others() if held == dispatch_id}:
            if any(ti_id is not None for ti_id in others.values()):
                return False
            if time.monotonic() > deadline:
                return self._place < min(others)
            time.sleep(0.005)
        return True

    def _others(self) -> list[tuple[int, Any]]:
        return [(place, entry) for place, entry in self._running_tasks._entries(IN_HAND_AT) if place != self._place]

    def put_down(self) -> None:
        """Record that this process has no dispatch any more."""
        self._running_tasks._write(self._place, IN_HAND_AT, None)

    def clear(self) -> None:
        """Remove all that the process before has written: it may have died with a task. The parent has already read it."""
        for part in ENDS:
            self._running_tasks._write(self._place, part, None)

    def enter(self, running: Running) -> None:
        """Record that user code starts."""
        self._running_tasks._write(self._place, RUNNING_AT, {name: getattr(running, name) for name in Running.__slots__})

    def continues(self, in_place: InPlace) -> None:
        """Record the task with which this process may continue, before its report decides."""
        self._running_tasks._write(self._place, IN_PLACE_AT, {name: getattr(in_place, name) for name in InPlace.__slots__})

    def continued(self, step: Step) -> None:
        """Record the task with which this process has continued."""
        self._running_tasks._write(self._place, STEP_AT, {name: getattr(step, name) for name in Step.__slots__})

    @property
    def draining(self) -> bool:
        return self._running_tasks.draining

    @property
    def events(self) -> bool:
        return self._running_tasks.events

    def leave(self) -> None:
        """Record that user code has ended, so that this pool process is not stopped for it any more."""
        self._running_tasks._write(self._place, RUNNING_AT, None)

    def take_stop(self, dispatch_id: str) -> str | None:
        """Return the reason for a SIGTERM while `dispatch_id` runs; None if the signal was sent for an earlier dispatch."""
        request = self._running_tasks._read(self._place, STOP_AT)
        self._running_tasks._write(self._place, STOP_AT, None)
        if request is None:
            return "its process received SIGTERM"
        return request[1] if request[0] == dispatch_id else None
