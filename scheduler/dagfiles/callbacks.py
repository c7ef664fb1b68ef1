"""The callback process: it has Paceline's modules imported and forks a child for each DAG file.

parser.CallbackHost starts it as `python -P -m scheduler.dagfiles.callbacks`. One child at a time answers requests, JSON line
for JSON line, through its own pipes. The callback process passes valid answers on. When the child has ended, it reports that and
waits for the next file. At the end of its input, it kills the child and exits.
"""

import contextlib
import faulthandler
import gc
import json
import os
import select
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from paceline import secrets_masker
from paceline.authoring import running
from paceline.authoring.dag import DAG
from scheduler.dagfiles import callback_context, fork_server, load, pipes, process_tree
from scheduler.dagfiles.answers import (
    CALLBACK_ANSWER,
    MAX_CALL_ANSWER_BYTES,
    MAX_CALL_REQUEST_BYTES,
    MAX_CALLBACKS,
    Called,
    Ended,
    Opened,
    Wanted,
    fault,
)  # fmt: skip
from scheduler.process import hardening, masked_output
from scheduler.settings import airflow_options, log_paths
from scheduler.store.dags.import_errors import clean

PRELOADED = ("paceline.operators", "croniter", "zoneinfo")
#: Maximum size of a file that a callback writes, such as its log.
MAX_FILE_MB = 1024
READ_BYTES = 1 << 16


@dataclass(slots=True)
class _Child:
    """The child of an open file. `asked` is True while an answer is due."""

    pid: int
    requests_fd: int
    answers_fd: int
    asked: bool = True
    fault: str | None = None


class Server(pipes.PipeServer):
    """Passes requests to a child and its answers back."""

    def __init__(self) -> None:
        super().__init__(pipes.LineReader(MAX_CALL_REQUEST_BYTES), PRELOADED)
        self._waiting: deque[bytes] = deque()

    def serve(self) -> None:
        """Fork a child for each requested file, until the input ends."""
        gc.collect()
        gc.freeze()
        while (line := self._request()) is not None:
            request = json.loads(line)
            if "file" not in request:
                continue  # for a child that has ended in the meantime, which was reported
            child = self._fork(request)
            ended = self._attend(child)
            code = fork_server.kill_group(child.pid)
            process_tree.kill_below()
            os.close(child.requests_fd)
            os.close(child.answers_fd)
            if not ended:
                return
            pipes.send(self._answers_fd, Ended(ended=code, fault=child.fault))

    def _request(self) -> bytes | None:
        """Return the next request, or None at the end of the input.

        A request may be waiting already, if its child ended before it could be passed on.
        """
        while not self._waiting:
            data = os.read(self._requests_fd, READ_BYTES)
            if not data:
                return None
            self._waiting.extend(self._requests.feed(data))
        return self._waiting.popleft()

    def _fork(self, request: dict[str, Any]) -> _Child:
        child_requests_fd, requests_fd = os.pipe()
        answers_fd, child_answers_fd = os.pipe()
        processes, parent = self._processes.limit(), os.getpid()
        pid = os.fork()
        if pid == 0:
            for fd in (self._requests_fd, self._answers_fd, requests_fd, answers_fd):
                os.close(fd)
            _child(request, parent, processes, child_requests_fd, child_answers_fd)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        os.close(child_requests_fd)
        os.close(child_answers_fd)
        pipes.prepare(answers_fd)
        return _Child(pid, requests_fd, answers_fd)

    def _attend(self, child: _Child) -> bool:
        """Pass requests and answers on until the child ends or violates the protocol. False if the input ended first."""
        pid_fd = os.pidfd_open(child.pid)
        answers = pipes.LineReader(MAX_CALL_ANSWER_BYTES)
        poll = select.poll()
        for fd in (pid_fd, child.answers_fd, self._requests_fd):
            poll.register(fd, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()} if not self._waiting else {self._requests_fd}
                if child.answers_fd in ready and not self._pass_answers(child, answers):
                    poll.unregister(child.answers_fd)
                if child.fault is not None or (pid_fd in ready and child.answers_fd not in ready):
                    return True
                if self._requests_fd in ready and not self._pass_request(child):
                    return False
        finally:
            os.close(pid_fd)

    def _pass_request(self, child: _Child) -> bool:
        request = self._request()
        if request is None:
            return False
        child.asked = True
        with contextlib.suppress(BrokenPipeError):  # the child is ending, which `_attend` detects
            pipes.write(child.requests_fd, request + b"\n")
        return True

    def _pass_answers(self, child: _Child, answers: pipes.LineReader) -> bool:
        """Pass the child's answers on. False if it can send no more."""
        data = pipes.read(child.answers_fd)
        try:
            for line in answers.feed(data or b""):
                answer = CALLBACK_ANSWER.validate_json(line)
                if isinstance(answer, Ended) or not child.asked:
                    child.fault = "it gave an unrequested answer"
                    return False
                child.asked = False
                pipes.send(self._answers_fd, answer)
        except ValidationError as error:
            child.fault = f"it gave an invalid answer: {fault(error)}"
        except pipes.LineTooLongError as error:
            child.fault = f"it gave an invalid answer: {error}"
        return data != b""


def _child(request: dict[str, Any], parent: int, processes: int | None, input_fd: int, output_fd: int) -> NoReturn:
    """Run the child: load the file, then call the requested functions until the request to stop."""
    code = 1
    try:
        hardening.die_with_parent(parent)
        _confine(request, processes)
        _serve_file(request, input_fd, output_fd)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        pipes.flush()
        # Atexit handlers and threads of user code must not keep the child running.
        os._exit(code)


def _serve_file(request: dict[str, Any], input_fd: int, output_fd: int) -> None:
    dags: dict[str, DAG] = {}
    reason: str | None = None
    faulthandler.dump_traceback_later(request["load_timeout_s"], exit=True)
    try:
        load.configure(request["timezone"], airflow_imports=request["airflow_imports"])
        airflow_options.use(Path(request["folder"]))
        dags = load.load(Path(request["folder"]), request["file"])
    except BaseException as error:
        traceback.print_exc()
        reason = clean(_words(error))
    faulthandler.cancel_dump_traceback_later()
    pipes.send(output_fd, Opened(problem=reason))
    requests = pipes.LineReader(MAX_CALL_REQUEST_BYTES)

    def ask(wanted: Wanted) -> dict[str, Any]:
        pipes.send(output_fd, wanted)
        return _receive(input_fd, requests) or {"error": "The scheduler stops."}

    reads = callback_context.Reads(ask)
    while (call := _receive(input_fd, requests)) is not None and "stop" not in call:
        _log_to(call["log"])
        faulthandler.dump_traceback_later(request["timeout_s"], exit=True)
        with masked_output.masked((1, 2)), running.served_outside(reads):
            answer = _call(dags, call)
        faulthandler.cancel_dump_traceback_later()
        pipes.flush()
        pipes.send(output_fd, answer)


def _call(dags: dict[str, DAG], call: dict[str, Any]) -> Called:
    """Call one function of the event. Returns its error, and the number of functions of the event."""
    functions: list[callback_context.Function] = []
    try:
        functions = callback_context.functions(dags, call)
        if call["index"] >= len(functions):
            return Called(count=min(len(functions), MAX_CALLBACKS), error=None)
        if len(functions) > MAX_CALLBACKS:
            return Called(count=0, error=f"it has {len(functions)} callbacks; {MAX_CALLBACKS} are allowed")
        function = functions[call["index"]]
        again = f", attempt {call['attempt']}" if call["attempt"] > 1 else ""
        line = f"--- {call['at']} {call['kind']} of {call['about']}{again}, callback {function.name}"
        print(line, flush=True)  # noqa: T201 - this is the log
        function.call()
    except BaseException as error:
        traceback.print_exc()
        return Called(count=min(len(functions), MAX_CALLBACKS), error=clean(secrets_masker.redact(_words(error))))
    return Called(count=len(functions), error=None)


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # __str__ may be user code
        return type(error).__name__


def _confine(request: dict[str, Any], processes: int | None) -> None:
    """Leave the process group of the parent, and set the limits."""
    os.setpgid(0, 0)
    _log_to(request["log"])
    process_tree.confine(memory_mb=request["memory_limit_mb"], file_mb=MAX_FILE_MB, processes=processes)
    faulthandler.enable(2)


def _log_to(path: str) -> None:
    """Redirect all output to `path` from now on. If it cannot be written, the output is discarded."""
    pipes.flush()
    try:
        log = log_paths.append(path)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _receive(fd: int, requests: pipes.LineReader) -> dict[str, Any] | None:
    while data := os.read(fd, READ_BYTES):
        for line in requests.feed(data):
            request: dict[str, Any] = json.loads(line)
            return request
    return None


if __name__ == "__main__":
    Server().main()
