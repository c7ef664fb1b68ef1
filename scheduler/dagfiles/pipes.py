"""The start of a process that reads requests from its input and writes answers to its output."""

import os

from scheduler.dagfiles import process_tree
from scheduler.process import hardening


def take() -> tuple[int, int]:
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


def write(fd: int, data: bytes) -> None:
    """Write all of `data`."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
