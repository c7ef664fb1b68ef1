"""The client of the callback process in the scheduler. It opens a DAG file, calls its functions one by one and closes it.

The answers may come from user code. The process must answer one request at a time. After an invalid or unrequested answer, the
process is killed, and the call fails.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from scheduler.dagfiles import pipes, problem, process_tree
from scheduler.dagfiles.answers import CALLBACK_ANSWER, MAX_CALL_ANSWER_BYTES, Called, Ended, Opened, Wanted, fault
from scheduler.dagfiles.parser import environment
from scheduler.dagfiles.pipes import Piped
from scheduler.settings import Settings

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
