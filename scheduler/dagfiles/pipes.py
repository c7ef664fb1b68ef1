"""The base of the fork servers: processes that read requests from their input and write answers to their output."""

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
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
        """Serve requests, also until nobody reads the answers any more."""
        with contextlib.suppress(BrokenPipeError):
            self.serve()
        sys.exit(0)


def _take() -> tuple[int, int]:
    """Move the pipes of this process away from its input and output; the descriptors of requests and answers.

    User code then has no input, and what it prints goes to the error output instead of into the answers. Children inherit the
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
