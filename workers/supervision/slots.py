"""What a worker shares with its pool processes: a slot of memory for each, which survives its death, and a pipe for events.

A pool process writes the task that it runs into its slot, and the worker writes the dispatch to stop. Neither waits for the other:
a slot reads as empty while it is being written. A pool process that continues with tasks in place also writes their IDs, because
its worker has only the message.
"""

import json
import math
import mmap
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from paceline.states import PASSED
from scheduler.process import fault_points
from scheduler.serialized.dag import SerializedDag
from scheduler.store.upkeep.heartbeats import boottime
from scheduler.store.worker.claims import Claim, Ending, NextInPlace

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


class SharedSlots:
    """The memory: slots for `children` pool processes, and one for the worker. Create it before they are forked."""

    def __init__(self, children: int) -> None:
        self._children = children
        self._memory = mmap.mmap(-1, (children + 1) * SLOT_BYTES)

    @property
    def worker_id(self) -> str:
        """The registered ID with which the pool processes of this worker claim and report."""
        registered: str | None = self.read(0, STOP_AT)
        assert registered is not None, "the worker registers before it forks"
        return registered

    @worker_id.setter
    def worker_id(self, worker_id: str) -> None:
        self.write(0, STOP_AT, worker_id)

    def lease(self, worker_id: str, until: float) -> None:
        """Allow exclusive tasks of this worker to run until that time of `boottime`."""
        self.write(0, RUNNING_AT, [worker_id, until])

    def has_lease(self, worker_id: str) -> bool:
        """Whether exclusive tasks claimed by this worker may run now."""
        for _ in range(READS):
            if (lease := self.read(0, RUNNING_AT)) is not None:
                return bool(lease[0] == worker_id and boottime() < lease[1])
            time.sleep(0.001)  # it is being written
        return False

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

    def entries(self, part: int) -> Iterator[tuple[int, Any]]:
        """The slots of the pool processes that have an entry in that part: index and entry."""
        for index in range(1, self._children + 1):
            if (entry := self.read(index, part)) is not None:
                yield index, entry

    def read(self, index: int, part: int) -> Any:
        start = index * SLOT_BYTES + part
        length = int.from_bytes(self._memory[start : start + LENGTH_BYTES], "little")
        if length == 0:
            return None
        try:
            return json.loads(self._memory[start + LENGTH_BYTES : start + LENGTH_BYTES + length])
        except (ValueError, RecursionError):  # it is being written
            return None

    def write(self, index: int, part: int, value: object) -> None:
        start = index * SLOT_BYTES + part
        capacity = ENDS[part] - part - LENGTH_BYTES
        data = b"" if value is None else to_json(value)  # json takes eight times as long, and each hop writes five of them
        assert len(data) <= capacity, f"{len(data)} bytes do not fit into a part of a slot"
        self._memory[start : start + LENGTH_BYTES] = bytes(LENGTH_BYTES)
        self._memory[start + LENGTH_BYTES : start + LENGTH_BYTES + len(data)] = data
        self._memory[start : start + LENGTH_BYTES] = len(data).to_bytes(LENGTH_BYTES, "little")


class Slot:
    """The slot of one pool process, as that process sees it."""

    def __init__(self, memory: SharedSlots, index: int) -> None:
        self._memory = memory
        self._index = index

    @property
    def worker_id(self) -> str:
        return self._memory.worker_id

    def await_lease(self, worker_id: str, within_s: float = math.inf) -> None:
        """Wait until exclusive tasks of this worker may run, for at most `within_s` seconds."""
        deadline = time.monotonic() + within_s
        while not self._memory.has_lease(worker_id) and time.monotonic() < deadline:
            time.sleep(0.02)

    def take(self, dispatch_id: str, ti_id: int | None = None) -> None:
        """Record the dispatch that this process has received; with its task instance once it is claimed."""
        self._memory.write(self._index, IN_HAND_AT, [dispatch_id, ti_id])

    def is_ours(self, dispatch_id: str) -> bool:
        """Whether this process has claimed a dispatch that a process of this worker has claimed.

        Another one that has received it too either claims it at once, or puts it down.
        """
        deadline = time.monotonic() + CLAIM_S
        while others := {index: ti_id for index, (held, ti_id) in self._others() if held == dispatch_id}:
            if any(ti_id is not None for ti_id in others.values()):
                return False
            if time.monotonic() > deadline:
                return self._index < min(others)
            time.sleep(0.005)
        return True

    def _others(self) -> list[tuple[int, Any]]:
        return [(index, entry) for index, entry in self._memory.entries(IN_HAND_AT) if index != self._index]

    def put_down(self) -> None:
        """Record that this process has no dispatch any more."""
        self._memory.write(self._index, IN_HAND_AT, None)

    def clear(self) -> None:
        """Remove all that the process before has written: it may have died with a task. The parent has already read it."""
        for part in ENDS:
            self._memory.write(self._index, part, None)

    def enter(self, running: Running) -> None:
        """Record that user code starts."""
        self._memory.write(self._index, RUNNING_AT, {name: getattr(running, name) for name in Running.__slots__})

    def continues(self, in_place: InPlace) -> None:
        """Record the task with which this process may continue, before its report decides."""
        self._memory.write(self._index, IN_PLACE_AT, {name: getattr(in_place, name) for name in InPlace.__slots__})

    def continued(self, step: Step) -> None:
        """Record the task with which this process has continued."""
        self._memory.write(self._index, STEP_AT, {name: getattr(step, name) for name in Step.__slots__})

    @property
    def draining(self) -> bool:
        return self._memory.draining

    @property
    def events(self) -> bool:
        return self._memory.events

    def leave(self) -> None:
        """Record that user code has ended, so that this pool process is not stopped for it any more."""
        self._memory.write(self._index, RUNNING_AT, None)

    def take_stop(self, dispatch_id: str) -> str | None:
        """Return the reason for a SIGTERM while `dispatch_id` runs; None if the signal was sent for an earlier dispatch."""
        request = self._memory.read(self._index, STOP_AT)
        self._memory.write(self._index, STOP_AT, None)
        if request is None:
            return "its process received SIGTERM"
        return request[1] if request[0] == dispatch_id else None


#: Bytes that are read at once.
CHUNK = 65_536
#: The fields of a line, with their types.
FIELDS = Step.__annotations__


class InPlaceEvents:
    """Create it in the worker before it forks its pool processes."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._rest = b""

    def write(self, step: Step) -> None:
        """Write that this process has continued.

        A line is shorter than PIPE_BUF, so lines of several processes do not mix. If the pipe is full, the events are lost.
        """
        with suppress(OSError):
            os.write(self._writer, to_json([getattr(step, name) for name in FIELDS]) + b"\n")

    def read(self) -> list[Step]:
        """Return the events that pool processes have written since the last call. User code could write anything, so every other
        line is dropped.
        """
        text = self._rest
        with suppress(BlockingIOError):
            while chunk := os.read(self.reader, CHUNK):
                text += chunk
        *lines, rest = text.split(b"\n")
        self._rest = rest[:CHUNK]
        steps = []
        for line in lines:
            with suppress(ValueError, TypeError, OverflowError, RecursionError):
                values = zip(FIELDS.items(), json.loads(line), strict=True)
                steps.append(Step(**{name: kind(value) for (name, kind), value in values}))
        return steps


class InPlaceSeries:
    """The work of one pool process: the task instance of a message, and the next ones in place for `seconds`. See ADR 30.

    The report decides with which task, see deciding/following.py and store/moves/report.sql. Only the process knows how long it has
    continued, and whether its worker allows it.
    """

    def __init__(self, slot: Slot, *, seconds: float = 0.0, max_tasks: int = 0, events: InPlaceEvents | None = None) -> None:
        self._seconds = seconds
        self._slot = slot
        self._events = events
        #: Task instances that this process may still run.
        self._left: float = max_tasks or math.inf
        self._message = ""
        self._until = self._began = 0.0

    @property
    def must_be_replaced(self) -> bool:
        """Whether this process has run worker.max_tasks_per_child tasks, or `retire` was called."""
        return self._left <= 0

    def retire(self) -> None:
        """Have this process replaced after the task that it runs now."""
        self._left = 0

    def begin(self, dispatch_id: str) -> None:
        """A message arrived, with this dispatch."""
        self._message, self._began = dispatch_id, time.monotonic()
        self._until = self._began + self._seconds
        self._left -= 1

    def after(self, claim: Claim, dag: SerializedDag, ending: Ending) -> NextInPlace | None:
        """The dispatch with which the report of this ending may continue; None if the next task must go by message."""
        # After a failed try, the next task starts from a message, in a process that may have been replaced.
        if ending.state not in PASSED or claim.task_no not in dag.in_place or self.must_be_replaced or not self._is_allowed():
            return None
        following = NextInPlace(str(uuid.uuid4()), self._is_allowed)
        # Before the report: from its commit on, this process runs that task, and may die.
        self._slot.continues(
            InPlace(
                message=self._message,
                ti_id=claim.id,
                dispatch_id=claim.dispatch_id,
                next_dispatch_id=following.dispatch_id,
            )
        )
        fault_points.point("continue.before")
        return following

    def _is_allowed(self) -> bool:
        """Whether its time is not over, and its worker is not stopping."""
        return time.monotonic() < self._until and not self._slot.draining

    def go_on(self, following: Claim) -> None:
        """This process continues with this task instance, which its last report has moved to running."""
        self._left -= 1
        now = time.monotonic()
        index = "" if following.map_index < 0 else f" [{following.map_index}]"
        step = Step(
            message=self._message,
            seconds=now - self._began,
            ti_id=following.id,
            dispatch_id=following.dispatch_id,
            name=f"{following.dag_id}.{following.task_id}",
            arguments=f"{following.run_id}{index}",
            started_at=following.started_at.timestamp(),
        )
        self._began = now
        self._slot.continued(step)
        if self._events is not None and self._slot.events:
            self._events.write(step)
