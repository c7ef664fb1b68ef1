"""The fork server for parsing DAG files: it has Paceline's modules imported and forks a keeper and its child for each file.

parser.Parser starts it as `python -P -m scheduler.dagfiles.fork_server`, sends requests as JSON lines to its standard input and
reads answers as JSON lines from its standard output. It does not trust the output of the children, but checks it. At the end of its
input, it kills them and exits.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from scheduler.dagfiles import keeper, lines, load, parse, pipes, problem, process_tree
from scheduler.dagfiles.answers import MAX_RESULT_BYTES, Answer, Reading, fault
from scheduler.settings import Core, Scheduler

#: Modules that most files need, but that are imported lazily. They are imported once here instead of in each child.
PRELOADED = ("paceline.operators", "croniter", "jsonschema_rs", "zoneinfo")
#: Seconds after its time limit until a child is killed if its own watchdog has not killed it.
GRACE_S = 1.0
#: Seconds after that until its keeper is killed. It should have killed all processes by then, unless user code has stopped it.
KEEPER_S = process_tree.KILL_S + 2.0
READ_BYTES = 1 << 20
MAX_REQUEST_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 4096


@dataclass(slots=True, eq=False)
class _Child:
    """A file that is being parsed. `pid` is the process ID of the keeper."""

    file: str
    pid: int
    pid_fd: int
    result_fd: int
    output_fd: int
    started: float
    result: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)


class ForkServer(pipes.PipeServer):
    """Forks children, reads their results and reaps them."""

    def __init__(self) -> None:
        super().__init__(lines.LineReader(MAX_REQUEST_BYTES), PRELOADED)
        self._work: parse.Work | None = None
        self._children: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._requests_fd, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Serve requests until the input ends. Its first line is the Work, each further line a file."""
        load.preload()
        try:
            while self._iterate():
                pass
        finally:
            process_tree.kill_below()

    def _iterate(self) -> bool:
        for key, _ in self._selector.select(self._timeout_s()):
            if key.data is None:
                if not self._take_requests():
                    return False
            elif key.fd == key.data.pid_fd:
                self._finish(key.data)
            else:
                self._read(key.data)
        self._kill_late()
        return True

    def _timeout_s(self) -> float | None:
        if not self._children:
            return None
        return max(0.0, min(child.started for child in self._children) + self._limit_s() + KEEPER_S - time.monotonic())

    def _worked(self) -> parse.Work:
        assert self._work is not None, "the first request sets it"
        return self._work

    def _limit_s(self) -> float:
        return self._worked().scheduler.dag_file_processor_timeout + GRACE_S

    def _take_requests(self) -> bool:
        data = os.read(self._requests_fd, READ_BYTES)
        for line in self._requests.feed(data):
            request = json.loads(line)
            if self._work is None:
                self._work = parse.Work(
                    Path(request["folder"]),
                    Core.model_validate(request["core"]),
                    Scheduler.model_validate(request["scheduler"]),
                )
                parse.warm_up(self._work)
                # Existing objects are excluded from garbage collection, so that children do not copy their pages by touching them.
                gc.collect()
                gc.freeze()
            else:
                self._fork(request["file"])
        return bool(data)

    def _fork(self, file: str) -> None:
        result_fd, child_result_fd = os.pipe()
        output_fd, child_output_fd = os.pipe()
        processes, fork_server = self._processes.limit(), os.getpid()
        pid = os.fork()
        if pid == 0:
            fds = {"result_fd": child_result_fd, "output_fd": child_output_fd}
            keeper.keep(
                lambda kept_by: parse.run_child(file, self._worked(), parent=kept_by, processes=processes, **fds),
                parent=fork_server,
                limit_s=self._limit_s(),
            )
        os.close(child_result_fd)
        os.close(child_output_fd)
        child = _Child(file, pid, os.pidfd_open(pid), result_fd, output_fd, time.monotonic())
        self._children.append(child)
        for fd in (result_fd, output_fd):
            lines.prepare(fd)
        for fd in (child.pid_fd, result_fd, output_fd):
            self._selector.register(fd, selectors.EVENT_READ, child)

    def _read(self, child: _Child) -> None:
        """Read the child's result and output. Only the first bytes are kept, so that large output needs no memory."""
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
            if time.monotonic() >= child.started + self._limit_s() + KEEPER_S:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)

    def _finish(self, child: _Child) -> None:
        if child not in self._children:
            return
        before = -1
        while before != len(child.result):  # the pipe may hold more than one read takes
            before = len(child.result)
            self._read(child)
        code = self._expire(child)
        reading = self._reading(child, code)
        answer = Answer(file=child.file, duration_s=time.monotonic() - child.started, **dict(reading))
        pipes.send(self._answers_fd, answer)

    def _expire(self, child: _Child) -> int:
        """Reap a keeper that has ended. Returns its exit code, negative for a signal."""
        _, status = os.waitpid(child.pid, 0)
        self._children.remove(child)
        for fd in (child.pid_fd, child.result_fd, child.output_fd):
            self._forget(fd)
            os.close(fd)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            # The keeper may have been killed before it could kill its descendants, which this process has then adopted.
            process_tree.kill_strays([other.pid for other in self._children])
        return code

    def _reading(self, child: _Child, code: int) -> Reading:
        report, mark, result = bytes(child.result).rpartition(parse.RESULT_MARK)
        if mark and code == 0:
            if len(child.result) >= MAX_RESULT_BYTES:
                return Reading(problem=problem.of_flood(MAX_RESULT_BYTES))
            try:
                return Reading.model_validate_json(result)
            except ValidationError as error:
                return Reading(problem=problem.of_answer(fault(error)))
        path = self._worked().folder / child.file
        limit_s = self._worked().scheduler.dag_file_processor_timeout
        texts = {
            "report": (report if mark else bytes(child.result)).decode("utf-8", "replace"),
            "output": child.output.decode("utf-8", "replace"),
        }
        if code in {1, -signal.SIGKILL} and time.monotonic() - child.started >= limit_s:
            return Reading(problem=problem.of_timeout(limit_s, path, **texts))
        return Reading(problem=problem.of_ending(code, path, **texts))


if __name__ == "__main__":
    ForkServer().main()
