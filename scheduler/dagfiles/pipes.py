"""Both ends of the pipes of a fork server: the base of the server, and its process as the scheduler sees it.

The peer is not trusted: the length of lines is bounded, and the waits of the scheduler have a deadline.
"""

import contextlib
import fcntl
import importlib
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pydantic import BaseModel

from scheduler.dagfiles import process_tree
from scheduler.process import hardening

READ_BYTES = 1 << 20
#: Size of a pipe, if the system allows it. Large answers need fewer reads.
PIPE_BYTES = 1 << 20


class LineTooLongError(Exception):
    """A line is longer than the limit."""


class LineReader:
    """Assembles lines that arrive in parts. It reads each byte once."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    @property
    def is_inside(self) -> bool:
        """Whether an incomplete line has arrived."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`. LineTooLongError if a line exceeds the limit."""
        lines = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._add(end)
            lines.append(bytes(self._rest))
            self._rest.clear()
        self._add(rest)
        return lines

    def clear(self) -> None:
        """Discard the incomplete line."""
        self._rest.clear()

    def _add(self, part: bytes) -> None:
        if len(self._rest) + len(part) > self._max_bytes:
            self._rest.clear()
            raise LineTooLongError(f"a line is longer than {self._max_bytes} bytes")
        self._rest += part


def prepare(fd: int) -> None:
    """Make this end of a pipe non-blocking, and enlarge the pipe."""
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def read(fd: int) -> bytes | None:
    """Read up to READ_BYTES from a prepared pipe. None if it is empty; no bytes if its other end is closed."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None


def is_readable(fd: int, timeout_s: float = 0.0) -> bool:
    """Wait until there is data to read or the other end is closed. False after the timeout."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def write(fd: int, data: bytes, *, timeout_s: float = math.inf) -> None:
    """Write all of `data`. BrokenPipeError if the pipe is closed; TimeoutError if it is prepared and is not read in time."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    left = memoryview(data)
    while left:
        if not poll.poll(None if timeout_s == math.inf else max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"the pipe was not read for {timeout_s:g} s")
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(fd, left) :]


class PipeServer:
    """Has Paceline's modules imported and forks children. It has no threads, connections or passwords, and never runs user code."""

    def __init__(self, requests: LineReader, preloaded: Sequence[str]) -> None:
        self._requests_fd, self._answers_fd = _take()
        self._requests = requests
        self._processes = process_tree.ProcessCount()
        for name in preloaded:
            importlib.import_module(name)

    def serve(self) -> None:
        """Serve requests until the input ends."""
        raise NotImplementedError

    def main(self) -> NoReturn:
        """Serve requests until the input ends or the answers have no reader."""
        with contextlib.suppress(BrokenPipeError):
            self.serve()
        sys.exit(0)


class Piped:
    """A running module. In its own session the scheduler alone handles Ctrl-C, and the processes of user code can be found."""

    def __init__(self, module: str, environment: Mapping[str, str], python: str = sys.executable) -> None:
        self._process = process_tree.start(
            [python, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._pipes = self._process.stdin, self._process.stdout
        self.requests_fd, self.answers_fd = (pipe.fileno() for pipe in self._pipes)
        for fd in (self.requests_fd, self.answers_fd):
            prepare(fd)

    def end_requests(self) -> None:
        """End its input, so that it kills its children and exits."""
        with contextlib.suppress(OSError):
            self._pipes[0].close()

    def interrupt(self) -> None:
        """Kill its session. Any thread may do that."""
        process_tree.kill_session(self._process.pid)

    def kill(self) -> int:
        """Kill the process and all its descendants. Returns its exit code."""
        self.interrupt()  # before the process is reaped: until then no other process can have its ID
        code = self._process.wait()
        process_tree.ended(self._process.pid)
        process_tree.kill_strays()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        return code


def _take() -> tuple[int, int]:
    """Move the pipes of this process away from its input and output; the descriptors of requests and answers.

    User code then has no input, and its output goes to stderr instead of into the answers. Children inherit the
    hardening, so none can write into the pipes of this process or of another child.
    """
    requests_fd, answers_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    hardening.close()
    process_tree.become_reaper()
    return requests_fd, answers_fd


def send(fd: int, answer: BaseModel) -> None:
    """Write an answer as a line of JSON."""
    write(fd, answer.model_dump_json().encode() + b"\n")


def flush() -> None:
    """Flush the output of user code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # user code may have closed or replaced them
            stream.flush()
