"""A child process of a task, in its own process group, which is killed with the task or its worker."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

#: Seconds between SIGTERM and SIGKILL of the group.
GRACE_S = 5.0
_CHUNK_BYTES = 65536
#: Reads until the worker's end of the pipe closes, which kill -9 of the worker also does, and then kills its group.
_WATCH = "trap '' TERM; read -r _; kill -KILL 0"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process: its exit code (negative: the signal) and the last line it printed."""

    exit_code: int
    last_line: str


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    encoding: str = "utf-8",
    on_line: Callable[[str], None] = lambda line: None,
) -> Ended:
    """Run `command`, and copy its stdout and stderr to our stdout line by line.

    `on_line` is called with each line, or part of a long line. Any exception here terminates the whole process group.
    """
    with _watched_group() as group:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            process_group=group,
        )
        try:
            last_line = _copy_output(child, encoding, on_line)
            return Ended(child.wait(), last_line)
        except BaseException:
            _end_group(group, child)
            raise
        finally:
            if child.stdout is not None:
                child.stdout.close()


def describe(exit_code: int) -> str:
    """An exit code for people, with the name of the signal that caused it."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code < 0 or exit_code > 128:
        with suppress(ValueError):
            return f"exit code {exit_code} ({signal.Signals(number).name})"
    return f"exit code {exit_code}"


@contextmanager
def _watched_group() -> Iterator[int]:
    """A new process group. Its leader, a watcher, outlives this process only to kill the group."""
    watcher = subprocess.Popen(["sh", "-c", _WATCH], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0)
    try:
        yield watcher.pid
    except BaseException:
        # This also kills a command whose Popen was interrupted before it returned.
        with suppress(ProcessLookupError):
            os.killpg(watcher.pid, signal.SIGKILL)
        raise
    finally:
        watcher.kill()
        watcher.wait()
        if watcher.stdin is not None:
            watcher.stdin.close()


def _copy_output(child: subprocess.Popen[bytes], encoding: str, on_line: Callable[[str], None]) -> str:
    assert child.stdout is not None
    line = bytearray()
    complete = True
    while chunk := child.stdout.readline(_CHUNK_BYTES):
        if complete:
            line.clear()
        line += chunk
        complete = chunk.endswith(b"\n")
        text = chunk.decode(encoding, "backslashreplace")
        sys.stdout.write(text)
        sys.stdout.flush()
        on_line(text)
    return line.decode(encoding, "backslashreplace").rstrip()


def _end_group(group: int, child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
    try:
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        child.wait()
