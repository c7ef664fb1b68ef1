"""A forked process ends with its parent."""

import os
import signal

from scheduler.process.hardening import die_with_parent


def test_a_process_whose_parent_ended_before_it_registered_with_the_kernel_ends_itself() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(os.getpid())  # which is not its parent
        finally:
            os._exit(0)

    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_a_process_whose_parent_runs_continues() -> None:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
        finally:
            os._exit(7)

    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 7
