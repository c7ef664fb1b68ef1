"""Both ends of the pipes of a fork server: the base of the server, and its process as the scheduler sees it."""

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pydantic import BaseModel

from scheduler.dagfiles import limits, lines, process_tree
from scheduler.process import hardening


class PipeServer:
    """Has Paceline's modules imported and forks children. It has no threads, connections or passwords, and never runs user code."""

    def __init__(self, requests: lines.LineReader, preloaded: Sequence[str]) -> None:
        self._requests_fd, self._answers_fd = _take()
        self._requests = requests
        self._processes = limits.ProcessCount()
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

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._process = process_tree.start(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._pipes = self._process.stdin, self._process.stdout
        self.requests_fd, self.answers_fd = (pipe.fileno() for pipe in self._pipes)
        for fd in (self.requests_fd, self.answers_fd):
            lines.prepare(fd)

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


def write(fd: int, data: bytes) -> None:
    """Write all of `data`."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def flush() -> None:
    """Flush the output of user code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # user code may have closed or replaced them
            stream.flush()
