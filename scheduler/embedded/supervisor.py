"""The supervisor of a stack: starts child processes under guardians, restarts failed ones and stops them by stage."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.exceptions import PacelineError
from scheduler.embedded import guardian
from scheduler.settings import log_paths

#: Seconds. A child that ran this long failed for a new reason, so the pause before its restart is the shortest again.
HEALTHY_S = 60.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
WATCH_INTERVAL_S = 0.1
#: Seconds in which a guardian must report the process that it started, or kill a process after its grace period.
GUARDIAN_S = 30.0
LARGEST_LOG_BYTES = 20 * 1024 * 1024


class ChildError(PacelineError):
    """A process of the stack did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and how to stop it. Higher stages depend on lower ones and are stopped first."""

    name: str
    argv: tuple[str, ...]
    stage: int = 0
    environment: Mapping[str, str] | None = None
    folder: Path | None = None
    #: Requests a clean shutdown, which may take `grace_sec`.
    stop_signal: int = signal.SIGTERM
    grace_sec: float = 10.0
    #: Sent to the command if the supervisor or its guardian is killed.
    death_signal: int = signal.SIGKILL
    #: User and group ID to run as; None to keep the user of the supervisor.
    user: tuple[int, int] | None = None


@dataclass(slots=True)
class _Child:
    command: Command
    log: Path
    process: subprocess.Popen[bytes]
    link: socket.socket
    pid: int
    started: float
    failures: int = 0
    restart_at: float | None = None
    stopping: bool = False


@dataclass(slots=True)
class Supervisor:
    """Keeps commands running until they are stopped. Use it as a context manager. It is thread-safe.

    `say` is called with one line for each child that fails. `lock` is a file descriptor that every guardian holds open until its
    command and all descendants have exited.
    """

    logs_folder: Path
    say: Callable[[str], None] = print
    lock: int | None = None
    _children: dict[str, _Child] = field(default_factory=dict)
    _guard: threading.RLock = field(default_factory=threading.RLock)
    _closed: threading.Event = field(default_factory=threading.Event)
    _watcher: threading.Thread | None = None

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, command: Command) -> int:
        """Start a command, supervise it from now on, and return its process ID. ChildError if it does not start."""
        with self._guard:
            if command.name in self._children:
                raise ChildError(f"{command.name} is already started.")
            child = self._spawn(command)
            self._children[command.name] = child
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
                self._watcher.start()
            return child.pid

    def stop(self, *names: str) -> None:
        """Stop commands in parallel: stop signal, grace period, then SIGKILL for them and all their descendants."""
        with self._guard:
            children = [self._children.pop(name) for name in names if name in self._children]
            for child in children:
                child.stopping = True
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(child.command.stop_signal)
        started = time.monotonic()
        for child in children:
            remaining = started + child.command.grace_sec - time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, remaining))
        for child in children:
            # A closed link makes the guardian kill all its descendants.
            child.link.close()
        for child in children:
            try:
                child.process.wait(GUARDIAN_S)
            except subprocess.TimeoutExpired:
                self.say(f"{child.command.name} did not exit, even after SIGKILL.")
                child.process.kill()
                child.process.wait()

    def close(self, *, lowest_stage: int = 0) -> None:
        """Stop all commands, the highest stage first. Commands below `lowest_stage` keep running without supervision."""
        with self._guard:
            self._closed.set()
            stages = sorted({child.command.stage for child in self._children.values()}, reverse=True)
        for stage in stages:
            if stage >= lowest_stage:
                self.stop(*[name for name, child in self._copy().items() if child.command.stage == stage])
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    def pid(self, name: str) -> int:
        """Return the process ID of a command, not of its guardian."""
        return self._children[name].pid

    def alive(self, name: str) -> bool:
        child = self._copy().get(name)
        return child is not None and child.restart_at is None and child.process.poll() is None

    def names(self) -> list[str]:
        """Return the names of all supervised commands, in the order of their start."""
        return list(self._copy())

    def log(self, name: str) -> Path:
        return self.logs_folder / f"{name}.log"

    def log_tail(self, name: str, lines: int = 20) -> str:
        """Return the last lines of a command's log; an empty string if it never ran."""
        try:
            with self.log(name).open(encoding="utf-8", errors="replace") as log:
                return "".join(deque(log, maxlen=lines))
        except FileNotFoundError:
            return ""

    def _copy(self) -> dict[str, _Child]:
        with self._guard:
            return dict(self._children)

    def _spawn(self, command: Command, failures: int = 0) -> _Child:
        log = self.log(command.name)
        ours, theirs = socket.socketpair()
        arguments = [f"--link={theirs.fileno()}", f"--death-signal={int(command.death_signal)}"]
        if command.user is not None:
            arguments += ["--user", *map(str, command.user)]
        with theirs, _appending(log) as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, *arguments, "--", *command.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if command.environment is None else dict(command.environment),
                cwd=command.folder,
                start_new_session=True,
                pass_fds=[theirs.fileno()] + ([] if self.lock is None else [self.lock]),
            )
        ours.settimeout(GUARDIAN_S)
        answer = b""
        with contextlib.suppress(TimeoutError):
            answer = ours.recv(64)
        if not answer:
            ours.close()
            process.kill()
            process.wait()
            raise ChildError(f"{command.name} could not be started: see {log}.")
        return _Child(command, log, process, ours, int(answer), time.monotonic(), failures)

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_INTERVAL_S):
            with self._guard:
                for child in list(self._children.values()):
                    if self._closed.is_set():
                        return
                    self._look_after(child)

    def _look_after(self, child: _Child) -> None:
        now = time.monotonic()
        name = child.command.name
        if child.restart_at is not None:
            if now < child.restart_at:
                return
            try:
                self._children[name] = self._spawn(child.command, child.failures)
            except (OSError, ChildError) as error:
                self._plan_restart(child, f"{name} did not start: {error}")
            else:
                self.say(f"{name} runs again.")
        elif (code := child.process.poll()) is not None:
            child.link.close()
            child.failures = 0 if now - child.started > HEALTHY_S else child.failures
            self._plan_restart(child, f"{name} {ending(code)}, its log is {child.log}")

    def _plan_restart(self, child: _Child, reason: str) -> None:
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**child.failures)
        child.failures += 1
        child.restart_at = time.monotonic() + pause
        self.say(f"{reason}; starting it again in {pause:.0f} s.")


def ending(code: int) -> str:
    """Describe an exit code, as the end of a sentence."""
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(code - 128).name}"
    return f"exited with code {code}"


@contextlib.contextmanager
def _appending(log: Path) -> Iterator[int]:
    """Open a log for appending. A large log is renamed first."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LARGEST_LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
    descriptor = log_paths.append(str(log))
    try:
        yield descriptor
    finally:
        os.close(descriptor)
