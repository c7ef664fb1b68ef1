"""Events of tasks that a pool process runs in place: a pipe to its parent, which sends them to Flower.

A pool process has no connection for events, and its parent sees only the message. Nothing is written while nobody wants events.
"""

import json
import os
from contextlib import suppress
from dataclasses import astuple, dataclass

from scheduler.store.worker.claims import Claim

#: Bytes that are read at once.
CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Step:
    """A pool process that received `message` has succeeded after `seconds`, and runs another dispatch."""

    message: str
    seconds: float
    dispatch_id: str
    name: str
    arguments: str


class InPlaceEvents:
    """Create it in the worker before it forks its pool processes."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._rest = b""

    def continued(self, message: str, seconds: float, following: Claim) -> None:
        """Write that this process continues with `following`.

        A line is shorter than PIPE_BUF, so lines of several processes do not mix. If the pipe is full, the events are lost.
        """
        index = "" if following.map_index < 0 else f" [{following.map_index}]"
        name = f"{following.dag_id}.{following.task_id}"
        step = Step(message, seconds, following.dispatch_id, name, f"{following.run_id}{index}")
        with suppress(OSError):
            os.write(self._writer, json.dumps(astuple(step)).encode() + b"\n")

    def read(self) -> list[Step]:
        """Return what pool processes have written since the last call. User code could write anything; the rest is dropped."""
        text = self._rest
        with suppress(BlockingIOError):
            while chunk := os.read(self.reader, CHUNK):
                text += chunk
        *lines, rest = text.split(b"\n")
        self._rest = rest[:CHUNK]
        steps = []
        for line in lines:
            with suppress(ValueError, TypeError):
                message, seconds, dispatch_id, name, arguments = json.loads(line)
                steps.append(Step(str(message), float(seconds), str(dispatch_id), str(name), str(arguments)))
        return steps
