"""The scheduler's end of its template process: hand in files, get back what was read from them."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler import secrecy
from scheduler.settings import Settings

READ_BYTES = 1 << 20
STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What reading one file gave: rows of DAGs, or a problem (its message, line and traceback).

    `modules` of the DAGs folder were imported, by path relative to it. `settled`: the DAGs follow from the code alone.
    """

    file: str
    duration_s: float
    dags: Sequence[dict[str, Any]] = ()
    problem: dict[str, Any] | None = None
    modules: Sequence[str] = ()
    settled: bool = False


class Parser:
    """Starts the template process when it is first needed, and again if a file manages to end it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()
        self._waiting: deque[str] = deque()
        self._reading: set[str] = set()
        #: Files that were being read when a template process died: read one at a time, so that the guilty one is known.
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
        answers, alive = self._receive()
        if not alive:
            answers += self._bury()
        if self.busy:
            self._feed()
        return answers

    def wait(self, timeout_s: float) -> bool:
        """Whether there is an answer to collect, within this time."""
        if self._process is None or self._process.stdout is None:
            return False
        return bool(select.select([self._process.stdout], [], [], timeout_s)[0])

    def fileno(self) -> int | None:
        """Readable when there is an answer to collect; None while there is no template process."""
        return None if self._process is None or self._process.stdout is None else self._process.stdout.fileno()

    def stop(self) -> None:
        """End the template process and everything it and the files have started."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # the template kills its children and ends
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._drain(STOP_S)
        self._bury()
        self._waiting.clear()
        self._suspects.clear()

    def _feed(self) -> None:
        if self._suspects:
            files = [self._suspects.popleft()] if not self._reading else []
        else:
            files = list(self._waiting)
            self._waiting.clear()
        if files:
            self._reading.update(files)
            self._send(*({"file": file} for file in files))

    def _send(self, *requests: dict[str, Any]) -> None:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died; collect() finds that out
            self._process.stdin.write("".join(json.dumps(request) + "\n" for request in requests).encode())
            self._process.stdin.flush()

    def _start(self) -> None:
        # A session of its own: the terminal's Ctrl-C is the scheduler's to handle, and nothing a file starts gets lost.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "scheduler.dagfiles.template"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(self._settings),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._received.clear()
        self._send(
            {
                "folder": str(self._settings.dags_folder),
                "core": self._settings.core.model_dump(mode="json", exclude={"fernet_key"}),
                "scheduler": self._settings.scheduler.model_dump(mode="json"),
            }
        )

    def _receive(self) -> tuple[list[Answer], bool]:
        """Complete answers, and whether the template process lives."""
        if self._process is None or self._process.stdout is None:
            return [], True
        alive = True
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._process.stdout.fileno(), READ_BYTES):
                self._received += data
            alive = False
        *lines, rest = bytes(self._received).split(b"\n") if self._received else [b""]
        self._received = bytearray(rest)
        answers = [Answer(**json.loads(line)) for line in lines]
        self._reading.difference_update(answer.file for answer in answers)
        return answers, alive

    def _bury(self) -> list[Answer]:
        """Clear away a template process that has ended or must; blame the one file that was being read, suspect several."""
        if self._process is None:
            return []
        # Before it is waited for: until then nothing else can have got its id.
        kill_session(self._process.pid)
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._process = None
        lost, self._reading = sorted(self._reading), set()
        if len(lost) > 1:
            self._suspects.extend(lost)
            return []
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        message = f"Reading the file ended the process that reads all files ({ending})."
        return [Answer(file, 0.0, problem={"message": message, "line": None, "traceback": ""}) for file in lost]

    def _drain(self, timeout_s: float) -> None:
        """Let the template end: it may be waiting for somebody to take an answer."""
        assert self._process is not None and self._process.stdout is not None
        while self.wait(timeout_s):
            try:
                if not os.read(self._process.stdout.fileno(), READ_BYTES):
                    return
            except BlockingIOError:
                continue


def environment(settings: Settings) -> dict[str, str]:
    """What the author's code sees while its file is read: ours without passwords, and where home is."""
    ours = {"PACELINE_HOME": str(settings.home), "PACELINE_DAGS_FOLDER": str(settings.dags_folder)}
    return secrecy.clean(os.environ.items()) | ours


def kill_session(session: int) -> None:
    """Kill every process of a session, also those that left their process group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)
