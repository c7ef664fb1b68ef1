"""The scheduler's end of its template process: hand in files, get back what was read from them."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from scheduler.dagfiles import lines, problem, process_tree
from scheduler.dagfiles.answers import MAX_LINE_BYTES, Answer, FileProblem, fault
from scheduler.process import hardening
from scheduler.settings import Settings

log = logging.getLogger(__name__)

STOP_S = 5.0
#: How long requests may wait for the template to take them; it takes none while it starts.
SEND_S = 10.0
#: How long after its time limit a file must have been answered: the template ends it before, unless something has stopped that.
LATE_S = 20.0


class Parser:
    """Starts the template process when it is first needed, and again if a file manages to end it, to stop it or to speak for it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._received = lines.LineReader(MAX_LINE_BYTES)
        self._waiting: deque[str] = deque()
        #: When each file that is being read was handed in.
        self._reading: dict[str, float] = {}
        #: Files that were being read when a template process ended: read one at a time, so that the guilty one is known.
        self._suspects: deque[str] = deque()

    @property
    def busy(self) -> int:
        """Files handed in and not yet answered."""
        return len(self._reading) + len(self._waiting) + len(self._suspects)

    def submit(self, files: Iterable[str]) -> None:
        """Read these files, all at the same time: who calls keeps `busy` within its limit."""
        self._waiting.extend(files)
        self._feed()

    def collect(self) -> list[Answer]:
        """The answers that have come since the last call; never waits."""
        answers, trouble = self._receive()
        if trouble is None and self._is_late():
            trouble = "did not answer in time"
        if trouble is not None:
            answers += self._end_template(trouble)
        if self.busy:
            self._feed()
        return answers

    def wait(self, timeout_s: float) -> bool:
        """Whether there is an answer to collect, within this time."""
        fd = self.fileno()
        return fd is not None and lines.is_readable(fd, timeout_s)

    def fileno(self) -> int | None:
        """Readable when there is an answer to collect; None while there is no template process."""
        return None if self._process is None or self._process.stdout is None else self._process.stdout.fileno()

    def stop(self) -> None:
        """End the template process and everything it and the files have started."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # the template kills its children and ends
            self._drain(STOP_S)
        self._end_template("was stopped")
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
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        data = "".join(json.dumps(request) + "\n" for request in requests).encode()
        try:
            lines.write(self._process.stdin.fileno(), data, timeout_s=SEND_S)
        except BrokenPipeError:
            pass  # it died; collect() finds that out
        except TimeoutError:
            process_tree.kill_session(self._process.pid)  # so does collect()

    def _start(self) -> None:
        # A session of its own: the terminal's Ctrl-C is the scheduler's to handle, and nothing a file starts gets lost.
        self._process = process_tree.start(
            [sys.executable, "-P", "-m", "scheduler.dagfiles.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(self._settings),
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        for pipe in (self._process.stdin, self._process.stdout):
            lines.prepare(pipe.fileno())
        self._received.clear()
        self._send(
            {
                "folder": str(self._settings.dags_folder),
                "core": self._settings.core.model_dump(mode="json", exclude={"fernet_key"}),
                "scheduler": self._settings.scheduler.model_dump(mode="json"),
            }
        )

    def _receive(self) -> tuple[list[Answer], str | None]:
        """Complete answers, and why no more can come from this template process, if so."""
        answers: list[Answer] = []
        fd = self.fileno()
        if fd is None:
            return answers, None
        try:
            while data := lines.read(fd):
                for line in self._received.feed(data):
                    answers.append(self._answer(line))
        except (ValidationError, _UnexpectedError, lines.LineTooLongError) as error:
            what = fault(error) if isinstance(error, ValidationError) else str(error)
            log.error("The process that reads DAG files says what it should not (%s) and is started again", what)
            return answers, f"said what it should not ({what})"
        return answers, None if data is None else "ended"

    def _answer(self, line: bytes) -> Answer:
        answer = Answer.model_validate_json(line)
        if self._reading.pop(answer.file, None) is None:
            raise _UnexpectedError("an answer for a file that is not being read")
        return answer

    def _is_late(self) -> bool:
        limit_s = self._settings.scheduler.dag_file_processor_timeout + LATE_S
        return bool(self._reading) and time.monotonic() - min(self._reading.values()) > limit_s

    def _end_template(self, trouble: str) -> list[Answer]:
        """Clear away a template process; blame the one file that was being read, suspect several."""
        if self._process is None:
            return []
        # Before it is waited for: until then nothing else can have got its id.
        process_tree.kill_session(self._process.pid)
        code = self._process.wait()
        process_tree.ended(self._process.pid)
        process_tree.kill_strays()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._process = None
        lost, self._reading = sorted(self._reading), {}
        if len(lost) > 1:
            self._suspects.extend(lost)
            return []
        if trouble == "ended":
            message = f"Reading the file ended the process that reads all files ({problem.ending(code)})."
        else:
            message = f"The process that reads all files {trouble} while it read this file."
        return [Answer(file=file, duration_s=0.0, problem=FileProblem(message=message)) for file in lost]

    def _drain(self, timeout_s: float) -> None:
        """Let the template end: it may be waiting for somebody to take an answer."""
        fd, deadline = self.fileno(), time.monotonic() + timeout_s
        assert fd is not None
        while lines.is_readable(fd, deadline - time.monotonic()):
            if lines.read(fd) == b"":
                return


class _UnexpectedError(Exception):
    """An answer that fits no request."""


def environment(settings: Settings) -> dict[str, str]:
    """What the author's code sees while its file is read: ours without passwords, and where home is."""
    ours = {"PACELINE_HOME": str(settings.home), "PACELINE_DAGS_FOLDER": str(settings.dags_folder)}
    return hardening.clean(os.environ.items()) | ours
