"""The process that DAG files are read from: it has our modules imported, and forks one child for each file.

Started as `python -P -m scheduler.dagfiles.template` by parser.Parser, whose requests it gets as JSON lines on its standard
input and answers in JSON lines on its standard output. It has no thread, no connection and no password, and never runs
the author's code itself. When its input ends, it kills its children and ends.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler.dagfiles import parse, problem
from scheduler.settings import Core, Scheduler

#: What most files need and their imports load late: loaded once here instead of in each child.
PRELOADED = ("scheduler.operators", "croniter", "jsonschema", "zoneinfo")
#: How long after its time limit a child is killed that has not been ended by its own watchdog.
GRACE_S = 1.0
READ_BYTES = 1 << 20
MAX_RESULT_BYTES = 64 << 20
MAX_OUTPUT_BYTES = 4096


@dataclass(slots=True, eq=False)
class _Child:
    file: str
    pid: int
    pid_fd: int
    result_fd: int
    output_fd: int
    started: float
    result: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)
    timed_out: bool = False


class Template:
    """Forks, feeds on and buries the children."""

    def __init__(self, requests_fd: int, answers_fd: int) -> None:
        self._requests_fd = requests_fd
        self._answers_fd = answers_fd
        self._requests = bytearray()
        self._work: parse.Work | None = None
        self._children: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests_fd, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Work until the input ends. The first line of it is the Work, each further one a file."""
        for name in PRELOADED:
            importlib.import_module(name)
        try:
            while self._turn():
                pass
        finally:
            for child in list(self._children):
                self._bury(child)

    def _turn(self) -> bool:
        for key, _ in self._selector.select(self._patience_s()):
            if key.data is None:
                if not self._take_requests():
                    return False
            elif key.fd == key.data.pid_fd:
                self._finish(key.data)
            else:
                self._read(key.data)
        self._kill_late()
        return True

    def _patience_s(self) -> float | None:
        if not self._children or self._work is None:
            return None
        return max(0.0, min(child.started for child in self._children) + self._limit_s() - time.monotonic())

    def _limit_s(self) -> float:
        assert self._work is not None
        return self._work.scheduler.dag_file_processor_timeout + GRACE_S

    def _take_requests(self) -> bool:
        data = os.read(self._requests_fd, READ_BYTES)
        self._requests += data
        *lines, rest = bytes(self._requests).split(b"\n")
        self._requests = bytearray(rest)
        for line in lines:
            request = json.loads(line)
            if self._work is None:
                self._work = parse.Work(
                    Path(request["folder"]),
                    Core.model_validate(request["core"]),
                    Scheduler.model_validate(request["scheduler"]),
                )
                parse.warm_up(self._work)
                # What is there now is never collected, so a child does not copy these pages by touching them.
                gc.collect()
                gc.freeze()
            else:
                self._fork(request["file"])
        return bool(data)

    def _fork(self, file: str) -> None:
        assert self._work is not None
        result_fd, child_result_fd = os.pipe()
        output_fd, child_output_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            parse.run_child(file, self._work, result_fd=child_result_fd, output_fd=child_output_fd)
        os.close(child_result_fd)
        os.close(child_output_fd)
        # Also here: whoever comes first makes the group, so that it exists before anything may be killed by it.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        child = _Child(file, pid, os.pidfd_open(pid), result_fd, output_fd, time.monotonic())
        self._children.append(child)
        for fd in (result_fd, output_fd):
            os.set_blocking(fd, False)
        for fd in (child.pid_fd, result_fd, output_fd):
            self._selector.register(fd, selectors.EVENT_READ, child)

    def _read(self, child: _Child) -> None:
        """Take what the child has written; of its output the first bytes are kept, so a flood costs nothing."""
        if child not in self._children:
            return
        for fd, kept, limit in (
            (child.result_fd, child.result, MAX_RESULT_BYTES),
            (child.output_fd, child.output, MAX_OUTPUT_BYTES),
        ):
            with contextlib.suppress(BlockingIOError):
                data = os.read(fd, READ_BYTES)
                kept.extend(data[: max(0, limit - len(kept))])
                if not data:
                    self._forget(fd)

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def _kill_late(self) -> None:
        for child in self._children:
            if time.monotonic() >= child.started + self._limit_s() and not child.timed_out:
                child.timed_out = True
                _kill_group(child.pid)

    def _finish(self, child: _Child) -> None:
        if child not in self._children:
            return
        before = -1
        while before != len(child.result):  # the pipe may hold more than one read takes
            before = len(child.result)
            self._read(child)
        code = self._bury(child)
        answer = self._answer(child, code) | {"file": child.file, "duration_s": time.monotonic() - child.started}
        _write(self._answers_fd, json.dumps(answer).encode() + b"\n")

    def _bury(self, child: _Child) -> int:
        """End the child and all it has started; its exit code, negative for a signal."""
        # Not waited for yet, so nothing else can have got its id.
        _kill_group(child.pid)
        _, status = os.waitpid(child.pid, 0)
        self._children.remove(child)
        for fd in (child.pid_fd, child.result_fd, child.output_fd):
            self._forget(fd)
            os.close(fd)
        return os.waitstatus_to_exitcode(status)

    def _answer(self, child: _Child, code: int) -> dict[str, Any]:
        assert self._work is not None
        report, mark, result = bytes(child.result).rpartition(parse.RESULT_MARK)
        if mark and code == 0:
            if len(child.result) >= MAX_RESULT_BYTES:
                found = problem.Problem.make(f"The DAGs of the file take more than {MAX_RESULT_BYTES >> 20} MiB; split the file.")
                return {"problem": found.to_dict()}
            answer: dict[str, Any] = json.loads(result)
            return answer
        path = self._work.folder / child.file
        limit_s = self._work.scheduler.dag_file_processor_timeout
        texts = {
            "report": (report if mark else bytes(child.result)).decode("utf-8", "replace"),
            "output": child.output.decode("utf-8", "replace"),
        }
        if child.timed_out or (code == 1 and time.monotonic() - child.started >= limit_s):
            return {"problem": problem.of_timeout(limit_s, path, **texts).to_dict()}
        return {"problem": problem.of_ending(code, path, **texts).to_dict()}


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    # A child that left its group is still itself.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def main() -> None:
    """Keep the two pipes for ourselves: a child finds nothing on its input and cannot write into our answers."""
    requests_fd, answers_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    with contextlib.suppress(BrokenPipeError):
        Template(requests_fd, answers_fd).serve()
    sys.exit(0)


if __name__ == "__main__":
    main()
