"""In-place follow: when a pool process continues with the next task itself, without a message (docs/adr/0030).

The report decides with which task, see deciding/following.py and store/moves/report.sql. Only the process has these
facts: how long it has continued, and whether its worker allows it.
"""

import json
import math
import os
import time
import uuid
from contextlib import suppress

from paceline.states import PASSED
from scheduler.process import fault_points
from scheduler.serialized.dag import SerializedDag
from scheduler.store.worker.claims import Claim, Ending, NextInPlace
from workers.supervision.running_tasks import InPlace, Slot, Step

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
            os.write(self._writer, json.dumps([getattr(step, name) for name in FIELDS], ensure_ascii=False).encode() + b"\n")

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


#: After a failed try, the next task starts from a message, in a process that may have been replaced.
ENDINGS = PASSED


class InPlaceSeries:
    """The work of one pool process: the task instance of a message, and the next ones in place for `seconds`."""

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
        if ending.state not in ENDINGS or claim.task_no not in dag.in_place or self.must_be_replaced or not self._is_allowed():
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
