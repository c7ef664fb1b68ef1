"""What the pool children are running, in memory they share with their parent, so that it survives the death of a child.

One slot a child. The child writes what user code it runs; the parent writes which dispatch it wants stopped. Neither waits
for the other: a slot that is being written reads as empty.
"""

import math
import mmap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps, loads
from typing import Any

from scheduler.store.upkeep.heartbeats import boottime

SLOT_BYTES = 8192
#: Parts of a slot: where each starts; the last one ends with the slot.
RUNNING_AT, STOP_AT = 0, 6144
LENGTH_BYTES = 4
#: Attempts to read what is being written.
READS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """User code at work in a child. `deadline` is on the monotonic clock, which all processes of a machine share."""

    ti_id: int
    dispatch_id: str
    pid: int
    log: str
    deadline: float | None = None
    #: It may run only while `worker`, under which it was claimed, has a lease.
    exclusive: bool = False
    worker: str = ""


class RunningTasks:
    """Slots for `children` pool children; make it before they are forked."""

    def __init__(self, children: int) -> None:
        self._children = children
        self._memory = mmap.mmap(-1, (children + 1) * SLOT_BYTES)

    @property
    def worker_id(self) -> str:
        """Under which id of the registry this worker's children claim and report."""
        found: str | None = self._read(0, STOP_AT)
        assert found is not None, "the worker registers before it forks"
        return found

    @worker_id.setter
    def worker_id(self, worker_id: str) -> None:
        self._write(0, STOP_AT, worker_id)

    def lease(self, worker_id: str, until: float) -> None:
        """Exclusive tasks of this worker may run until then, by `boottime`."""
        self._write(0, RUNNING_AT, [worker_id, until])

    def has_lease(self, worker_id: str) -> bool:
        """Whether exclusive tasks claimed by this worker may run now."""
        for _ in range(READS):
            if (found := self._read(0, RUNNING_AT)) is not None:
                return bool(found[0] == worker_id and boottime() < found[1])
            time.sleep(0.001)  # it is being written
        return False

    def unleased(self) -> list[Running]:
        """Exclusive tasks that run without a lease."""
        return [one for one in self.running() if one.exclusive and not self.has_lease(one.worker)]

    def slot(self, index: int) -> "Slot":
        """The slot of the child with this number, counted from 0."""
        return Slot(self, 1 + index % self._children)

    def running(self) -> list[Running]:
        """What runs in all children now."""
        return [found for _, found in self._each()]

    def find(self, dispatch_id: str) -> Running | None:
        """The entry of a dispatch, if it is in user code; also after the death of its child."""
        return next((found for _, found in self._each() if found.dispatch_id == dispatch_id), None)

    def ask_stop(self, dispatch_id: str, reason: str) -> Running | None:
        """Leave the reason for the child that runs `dispatch_id`; returns its entry if it still does."""
        for place, found in self._each():
            if found.dispatch_id == dispatch_id:
                self._write(place, STOP_AT, [dispatch_id, reason])
                return found
        return None

    def _each(self) -> Iterator[tuple[int, Running]]:
        for place in range(1, self._children + 1):
            found: dict[str, Any] | None = self._read(place, RUNNING_AT)
            if found is not None:
                yield place, Running(**found)

    def _read(self, place: int, part: int) -> Any:
        start = place * SLOT_BYTES + part
        length = int.from_bytes(self._memory[start : start + LENGTH_BYTES], "little")
        if length == 0:
            return None
        try:
            return loads(self._memory[start + LENGTH_BYTES : start + LENGTH_BYTES + length])
        except ValueError:  # caught in the middle of a write
            return None

    def _write(self, place: int, part: int, value: object) -> None:
        start = place * SLOT_BYTES + part
        room = (STOP_AT if part == RUNNING_AT else SLOT_BYTES - STOP_AT) - LENGTH_BYTES
        data = b"" if value is None else dumps(value).encode()
        assert len(data) <= room, f"{len(data)} bytes do not fit into a part of the board"
        self._memory[start : start + LENGTH_BYTES] = bytes(LENGTH_BYTES)
        self._memory[start + LENGTH_BYTES : start + LENGTH_BYTES + len(data)] = data
        self._memory[start : start + LENGTH_BYTES] = len(data).to_bytes(LENGTH_BYTES, "little")


class Slot:
    """The place of one child on the board."""

    def __init__(self, running_tasks: RunningTasks, place: int) -> None:
        self._running_tasks = running_tasks
        self._place = place

    @property
    def worker_id(self) -> str:
        return self._running_tasks.worker_id

    def await_lease(self, worker_id: str, within_s: float = math.inf) -> None:
        """Until exclusive tasks of this worker may run, or the time is over."""
        deadline = time.monotonic() + within_s
        while not self._running_tasks.has_lease(worker_id) and time.monotonic() < deadline:
            time.sleep(0.02)

    def enter(self, running: Running) -> None:
        """User code starts."""
        self._running_tasks._write(self._place, RUNNING_AT, {name: getattr(running, name) for name in Running.__slots__})

    def leave(self) -> None:
        """User code has ended, so nobody may stop this child for its sake any more."""
        self._running_tasks._write(self._place, RUNNING_AT, None)

    def take_stop(self, dispatch_id: str) -> str | None:
        """Why a SIGTERM came to this child while it runs `dispatch_id`; None if it was meant for an earlier dispatch."""
        found = self._running_tasks._read(self._place, STOP_AT)
        self._running_tasks._write(self._place, STOP_AT, None)
        if found is None:
            return "its process was told to stop (SIGTERM)"
        return found[1] if found[0] == dispatch_id else None
