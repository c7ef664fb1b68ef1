"""The scheduler's end of a process that runs callbacks: open a DAG file there, call its functions one by one, close it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from scheduler.dagfiles.parser import environment, kill_session
from scheduler.settings import Settings

#: How long after its time limit a child is killed that has not been ended by its own watchdog.
GRACE_S = 1.0
READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Called:
    """How a callback ended: how many the event has, and what this one raised."""

    count: int
    error: str | None


class ChildEnded(Exception):
    """The child is gone in the middle of a call."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class CallbackHost:
    """One process, started when it is first needed and again after it has ended. For one thread, but for `interrupt`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()

    def open(self, file: str, log: str) -> str | None:
        """Load a DAG file in a new child; why that failed, or None. ChildEnded if it ended the child."""
        limits = self._settings.scheduler
        answer = self._ask(
            {
                "folder": str(self._settings.dags_folder),
                "file": file,
                "log": log,
                "timezone": self._settings.core.default_timezone,
                "load_timeout_s": limits.dag_file_processor_timeout,
                "timeout_s": limits.callback_execution_timeout,
                "memory_limit_mb": limits.dag_file_memory_limit_mb,
            },
            limits.dag_file_processor_timeout,
        )
        problem: str | None = answer["problem"]
        return problem

    def call(self, request: dict[str, Any]) -> Called:
        """Call one function of the open file. ChildEnded if the child ended meanwhile or had to be killed."""
        answer = self._ask(request, self._settings.scheduler.callback_execution_timeout)
        return Called(answer["count"], answer["error"])

    def close(self) -> None:
        """Let the child of the open file end; the process stays for the next."""
        with contextlib.suppress(ChildEnded):
            self._ask({"stop": True}, GRACE_S)

    def interrupt(self) -> None:
        """From another thread: kill what runs, so that the call in progress raises ChildEnded."""
        process = self._process
        if process is not None:
            kill_session(process.pid)

    def kill(self) -> None:
        """End the process and everything it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        # Before it is waited for: until then nothing else can have got its id.
        kill_session(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None
        started = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it died; the answer will not come
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        answer = self._answer(process, started + limit_s + GRACE_S)
        if answer is not None and ("ended" not in answer or "stop" in request):
            return answer
        timed_out = time.monotonic() - started >= limit_s
        # Also a process that lives: after a child that ended out of turn nobody knows what it waits for.
        self.kill()
        if timed_out:
            raise ChildEnded(f"it took more than {limit_s:g} s and was ended", timed_out=True)
        raise ChildEnded(f"its process ended ({_ending(answer)})", timed_out=False)

    def _answer(self, process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any] | None:
        """The next line, or None if none came in time or the process is gone."""
        assert process.stdout is not None
        while b"\n" not in self._received:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                return None
            data = os.read(process.stdout.fileno(), READ_BYTES)
            if not data:
                return None
            self._received += data
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        found: dict[str, Any] = json.loads(line)
        return found

    def _start(self) -> None:
        # A session of its own: the terminal's Ctrl-C is the scheduler's to handle, and nothing a callback starts gets lost.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scheduler.dagfiles.callbacks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(self._settings),
            start_new_session=True,
        )
        self._received.clear()


def _ending(answer: dict[str, Any] | None) -> str:
    if answer is None:
        return "together with the process that runs callbacks"
    code: int = answer["ended"]
    return signal.Signals(-code).name if code < 0 and -code in set(signal.Signals) else f"exit code {code}"
