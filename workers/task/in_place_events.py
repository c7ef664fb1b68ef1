"""Events of tasks that a pool process runs in place: a pipe to its parent, which sends them to Flower.

A pool process has no connection for events, and its parent has only the message. Nothing is written while events are off.
"""

import json
import os
from contextlib import suppress

from workers.supervision.running_tasks import Step

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
