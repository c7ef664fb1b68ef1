"""The clients of the processes with user code in a scheduler: one submits files to the fork server and collects their results; the
other has the callback process open a DAG file, call its functions one by one, and close it.

The answers may come from user code. The callback process must answer one request at a time. After an invalid or unrequested answer,
it is killed, and the call fails.
"""

import contextlib
import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from scheduler.dagfiles import pipes, problem, process_tree
from scheduler.dagfiles.answers import (
    CALLBACK_ANSWER,
    MAX_CALL_ANSWER_BYTES,
    MAX_LINE_BYTES,
    Answer,
    Called,
    Ended,
    Opened,
    Wanted,
    fault,
)
from scheduler.dagfiles.pipes import Piped
from scheduler.process import hardening
from scheduler.settings import Settings
from scheduler.settings.environment import VARIABLE_PREFIXES
from scheduler.store.dags.import_errors import Problem

log = logging.getLogger(__name__)

STOP_S = 5.0
#: Seconds in which the fork server must read requests. It reads none while it starts.
SEND_S = 10.0
#: Seconds after its time limit in which a file must be answered. The fork server kills its parser sooner, unless it is stopped.
LATE_S = 20.0


class Parser:
    """Parses files in a fork server, which it starts on first use.

    It restarts the fork server if a file kills it, stops it or forges its answers.
    """

    def __init__(self, settings: Settings, *, details: bool = False) -> None:
        """With `details`, answers have those of each task."""
        self._settings = settings
        self._details = details
        self._folder = settings.dags_folder
        self._python = sys.executable
        self._process: Piped | None = None
        self._received = pipes.LineReader(MAX_LINE_BYTES)
        self._waiting: deque[str] = deque()
        #: The start time of each file that is being parsed.
        self._reading: dict[str, float] = {}
        #: Files that were being parsed when a fork server ended. They are parsed one at a time to identify the cause.
        self._suspects: deque[str] = deque()

    @property
    def busy(self) -> int:
        """The number of submitted files without an answer."""
        return len(self._reading) + len(self._waiting) + len(self._suspects)

    def use(self, folder: Path, python: str = sys.executable) -> None:
        """Parse the next files in this folder instead of the DAGs folder, with this Python. Starts the fork server.

        No file may be busy.
        """
        assert not self.busy
        if python != self._python:
            self.stop()
            self._python = python
        self._folder = folder
        self._send({"folder": str(folder)})

    def submit(self, files: Iterable[str]) -> None:
        """Parse these files, all at the same time. The caller must keep `busy` within its limit."""
        self._waiting.extend(files)
        self._feed()

    def collect(self) -> list[Answer]:
        """Return the answers that arrived since the last call. Never waits."""
        answers, trouble = self._receive()
        if trouble is None and self._is_late():
            trouble = "did not answer in time"
        if trouble is not None:
            answers += self._end_fork_server(trouble)
        if self.busy:
            self._feed()
        return answers

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is an answer to collect. False after the timeout."""
        fd = self.fileno()
        return fd is not None and pipes.is_readable(fd, timeout_s)

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when there is an answer to collect; None while no fork server runs."""
        return None if self._process is None else self._process.answers_fd

    def stop(self) -> None:
        """Kill the fork server and all its descendants."""
        if self._process is not None:
            self._process.end_requests()
            self._drain(STOP_S)
        self._end_fork_server("was stopped")
        self._waiting.clear()
        self._suspects.clear()

    def _feed(self) -> None:
        if self._suspects:
            files = [self._suspects.popleft()] if not self._reading else []
        else:
            files = list(self._waiting)
            self._waiting.clear()
        if files:
            self._reading |= dict.fromkeys(files, time.monotonic())
            self._send(*({"file": file} for file in files))

    def _send(self, *requests: dict[str, Any]) -> None:
        process = self._process or self._start()
        data = "".join(json.dumps(request) + "\n" for request in requests).encode()
        try:
            pipes.write(process.requests_fd, data, timeout_s=SEND_S)
        except BrokenPipeError:
            pass  # the fork server has ended, which collect() detects
        except TimeoutError:
            process.interrupt()  # collect() detects its end

    def _start(self) -> Piped:
        process = self._process = Piped("scheduler.dagfiles.fork_server", environment(self._settings), self._python)
        self._received.clear()
        self._send(
            {
                "folder": str(self._folder),
                "details": self._details,
                "core": self._settings.core.model_dump(mode="json", exclude={"fernet_key"}),
                "scheduler": self._settings.scheduler.model_dump(mode="json"),
            }
        )
        return process

    def _receive(self) -> tuple[list[Answer], str | None]:
        """Return the complete answers, and the reason why this fork server can send no more, if any."""
        answers: list[Answer] = []
        fd = self.fileno()
        if fd is None:
            return answers, None
        try:
            while data := pipes.read(fd):
                for line in self._received.feed(data):
                    answers.append(self._answer(line))
        except (ValidationError, _UnexpectedError, pipes.LineTooLongError) as error:
            reason = fault(error) if isinstance(error, ValidationError) else str(error)
            log.error("The fork server for DAG files gave an invalid answer (%s); restarting it", reason)
            return answers, f"gave an invalid answer ({reason})"
        return answers, None if data is None else "ended"

    def _answer(self, line: bytes) -> Answer:
        answer = Answer.model_validate_json(line)
        if self._reading.pop(answer.file, None) is None:
            raise _UnexpectedError("an answer for a file that is not being read")
        return answer

    def _is_late(self) -> bool:
        limit_s = self._settings.scheduler.dag_file_processor_timeout + LATE_S
        return bool(self._reading) and time.monotonic() - min(self._reading.values()) > limit_s

    def _end_fork_server(self, trouble: str) -> list[Answer]:
        """Kill the fork server. If one file was being parsed, it is the cause; if several were, each is parsed alone."""
        if self._process is None:
            return []
        code = self._process.kill()
        self._process = None
        lost, self._reading = sorted(self._reading), {}
        if len(lost) > 1:
            self._suspects.extend(lost)
            return []
        if trouble == "ended":
            message = f"Reading the file ended the process that reads all files ({problem.ending(code)})."
        else:
            message = f"The process that reads all files {trouble} while it read this file."
        return [Answer(file=file, duration_s=0.0, problem=Problem(message=message)) for file in lost]

    def _drain(self, timeout_s: float) -> None:
        """Read answers until the fork server ends: it may be waiting for space in the pipe."""
        fd, deadline = self.fileno(), time.monotonic() + timeout_s
        assert fd is not None
        while pipes.is_readable(fd, deadline - time.monotonic()):
            if pipes.read(fd) == b"":
                return


class _UnexpectedError(Exception):
    """An answer without a request."""


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of user code while its file is parsed: without passwords, with variables and folders."""
    ours = {"PACELINE_HOME": str(settings.home), "PACELINE_DAGS_FOLDER": str(settings.dags_folder)}
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLE_PREFIXES)}
    return hardening.clean(os.environ.items()) | variables | ours


A = TypeVar("A", Opened, Called, Ended)
#: Seconds after its time limit until a child is killed if its own watchdog has not killed it.
GRACE_S = 1.0
#: Seconds in which the child and all its descendants must be killed after the time limit.
END_S = GRACE_S + process_tree.KILL_S + 1.0


class ChildEnded(Exception):
    """The child ended during a call."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class CallbackHost:
    """A callback process. It is started on first use and restarted after it has ended.

    Only one thread may use it. Any thread may call `interrupt`.
    """

    def __init__(self, settings: Settings, read: Callable[[Wanted], dict[str, Any]] | None = None) -> None:
        """`read` answers what callbacks read: {"value": ...} or {"error": ...}."""
        self._settings = settings
        self._read = read
        self._python = sys.executable
        self._process: Piped | None = None
        self._received = pipes.LineReader(MAX_CALL_ANSWER_BYTES)

    def open(self, file: str, log: str, folder: Path | None = None, python: str = sys.executable) -> str | None:
        """Load a DAG file of a folder, by default the DAGs folder, in a new child of a process with this Python.

        Returns the error, or None. ChildEnded if the file terminated the child.
        """
        if python != self._python:
            self.kill()
            self._python = python
        limits = self._settings.scheduler
        opened = self._ask(
            {
                "folder": str(folder or self._settings.dags_folder),
                "file": file,
                "log": log,
                "timezone": self._settings.core.default_timezone,
                "airflow_imports": self._settings.core.airflow_imports,
                "load_timeout_s": limits.dag_file_processor_timeout,
                "timeout_s": limits.callback_execution_timeout,
                "memory_limit_mb": limits.dag_file_memory_limit_mb,
            },
            Opened,
            limits.dag_file_processor_timeout,
        )
        return opened.problem

    def call(self, request: dict[str, Any]) -> Called:
        """Call a function of the open file. ChildEnded if the child ended during the call or was killed."""
        return self._ask(request, Called, self._settings.scheduler.callback_execution_timeout)

    def close(self) -> None:
        """Stop the child of the open file. The callback process stays for the next file."""
        with contextlib.suppress(ChildEnded):
            self._ask({"stop": True}, Ended, GRACE_S)

    def interrupt(self) -> None:
        """Kill the process from another thread, so that the call in progress raises ChildEnded."""
        process = self._process
        if process is not None:
            process.interrupt()

    def kill(self) -> None:
        """Kill the process and all its descendants."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _ask(self, request: dict[str, Any], expected: type[A], limit_s: float) -> A:
        process = self._ready(fresh=expected is Opened)
        started = time.monotonic()
        # Later than the child should exit: its watchdog kills it at the limit, and the callback process a moment later.
        deadline = started + limit_s + END_S
        try:
            # The process may have ended. Then no answer arrives.
            with contextlib.suppress(BrokenPipeError):
                pipes.write(process.requests_fd, json.dumps(request).encode() + b"\n", timeout_s=limit_s)
            answer = self._answer(process, deadline)
            while isinstance(answer, Wanted) and self._read is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipes.write(process.requests_fd, json.dumps(self._read(answer)).encode() + b"\n", timeout_s=limit_s)
                answer = self._answer(process, deadline)
        except (ValidationError, pipes.LineTooLongError, TimeoutError) as error:
            self.kill()
            reason = fault(error) if isinstance(error, ValidationError) else str(error)
            raise ChildEnded(f"its process gave an invalid answer ({reason})", timed_out=False) from None
        if isinstance(answer, expected):
            return answer
        timed_out = time.monotonic() - started >= limit_s
        if not isinstance(answer, Ended):
            self.kill()
        if timed_out:
            raise ChildEnded(f"it took more than {limit_s:g} s and was killed", timed_out=True)
        raise ChildEnded(f"its process ended ({_ending(answer)})", timed_out=False)

    def _ready(self, *, fresh: bool) -> Piped:
        """Return the process, ready for a request. One with an unrequested answer is killed, and replaced if `fresh`."""
        process = self._process
        if process is not None:
            if not self._received.is_inside and not pipes.is_readable(process.answers_fd):
                return process
            self.kill()
        if not fresh:
            raise ChildEnded("its process ended before it was called", timed_out=False)
        self._process = Piped("scheduler.dagfiles.callbacks", environment(self._settings), self._python)
        self._received.clear()
        return self._process

    def _answer(self, process: Piped, deadline: float) -> Opened | Called | Ended | Wanted | None:
        """Return the answer, or None if it did not arrive in time or the process has ended."""
        while pipes.is_readable(process.answers_fd, deadline - time.monotonic()):
            data = pipes.read(process.answers_fd)
            if data == b"":
                return None
            answers = self._received.feed(data or b"")
            if answers:
                return CALLBACK_ANSWER.validate_json(answers[0])
        return None


def _ending(answer: Opened | Called | Ended | Wanted | None) -> str:
    if not isinstance(answer, Ended):
        return "together with the process that runs callbacks" if answer is None else "it gave an unrequested answer"
    return answer.fault or problem.ending(answer.ended)
