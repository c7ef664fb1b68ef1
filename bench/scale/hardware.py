"""The hardware of the model: processor cores, and the disk of the write-ahead log."""

from collections.abc import Generator
from typing import Any

import simpy

#: The next action of a process of the model.
Step = Generator[simpy.Event, Any, None]
#: CPU is assigned in slices of this many seconds, so that a long task does not delay short ones.
SLICE_S = 0.001


class Cpu:
    """The cores of a machine. `busy_s` is the CPU time so far of all that uses them, as if each were alone.

    A slice takes `slowdown` times as long if another core is busy when it begins. `slowed_s` is how long all slices have taken.
    """

    def __init__(self, env: simpy.Environment, cores: int, slowdown: float = 1.0) -> None:
        self._env = env
        self._free = simpy.Resource(env, cores)
        self._slowdown = slowdown
        self.busy_s = self.slowed_s = 0.0

    def use(self, seconds: float) -> Step:
        """Use a core, in slices."""
        self.busy_s += seconds
        while seconds > 0:
            part = min(seconds, SLICE_S)
            with self._free.request() as core:
                yield core
                takes_s = part * (self._slowdown if self._free.count > 1 else 1)
                self.slowed_s += takes_s
                yield self._env.timeout(takes_s)
            seconds -= part


class OwnCpus:
    """The CPUs of many machines, of which each has a core for everything that it does."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env

    def use(self, seconds: float) -> Step:
        """Use a core of one of them."""
        yield self._env.timeout(seconds)


class Log:
    """The write-ahead log. All commits that wait when a flush begins share it. `bytes` are those that the disk has written."""

    def __init__(self, env: simpy.Environment, flush_s: float, bytes_per_s: float) -> None:
        self._env = env
        self._flush_s = flush_s
        self._bytes_per_s = bytes_per_s
        self._next = env.event()
        self._wanted = env.event()
        self._unwritten = 0.0
        self.bytes = 0.0
        self.busy_s = 0.0
        env.process(self._write())

    def flush(self, new: float = 0.0) -> Step:
        """Add so many bytes, and wait until they are on the disk."""
        self._unwritten += new
        if not self._wanted.triggered:
            self._wanted.succeed()
        yield self._next

    def _write(self) -> Step:
        while True:
            yield self._wanted
            waiting, self._next, self._wanted = self._next, self._env.event(), self._env.event()
            new, self._unwritten = self._unwritten, 0.0
            takes_s = self._flush_s + new / self._bytes_per_s
            yield self._env.timeout(takes_s)
            self.bytes += new
            self.busy_s += takes_s
            waiting.succeed()
