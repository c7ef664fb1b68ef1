"""Starts Python processes by forking one that has imported their modules: a Celery worker is ready after 0.3 s of CPU, not 1 s.

Such a program is a process like any other, with its own environment, folder and output. It differs in /proc/<pid>/environ and
cmdline, which are the server's: tests of those start their programs themselves. The server ends when the test session does, even
if that was killed, and the kernel then kills the programs that still run.

Run as a program, this file is the server. It reads one JSON object a line and answers with one.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from scheduler.process.hardening import die_with_parent

POLL_S = 0.02


class ForkServer:
    """The test's side."""

    def __init__(self, server: "subprocess.Popen[bytes]") -> None:
        self._server = server
        self._one_at_a_time = threading.Lock()

    def start(
        self,
        source: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        output: Path,
        errors: Path | None = None,
    ) -> "Forked":
        """Run source as `python -P -c source arguments` would, with stdout in `output`, and stderr in `errors` or there too."""
        files = [str(output), str(errors or output)]
        return Forked(self, self.ask(source=source, arguments=[*arguments], environment=dict(env), folder=str(cwd), files=files))

    def run(
        self, source: str, arguments: Sequence[str], *, env: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run source to its end in the folder of this process, as subprocess.run would with captured text."""
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder, "output"), Path(folder, "errors")
            output.touch()
            errors.touch()
            process = self.start(source, arguments, env=env, cwd=Path.cwd(), output=output, errors=errors)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            return subprocess.CompletedProcess([*arguments], code, output.read_text("utf-8"), errors.read_text("utf-8"))

    def ask(self, **request: object) -> Any:
        assert self._server.stdin is not None and self._server.stdout is not None
        with self._one_at_a_time:
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()
            return json.loads(self._server.stdout.readline())


class Forked:
    """A program that the server runs, with the methods of subprocess.Popen that tests use."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask(reap=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_S)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        # Until the server reaps it at our request, the pid belongs to it.
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def running_fork_server(*modules: str) -> Iterator[ForkServer]:
    """A server that has imported these modules for its programs."""
    with subprocess.Popen([sys.executable, "-P", __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        yield ForkServer(server)
        assert server.stdin is not None
        server.stdin.close()


def serve() -> dict[str, Any] | None:
    """Answer requests until the test's side closes the pipe. In a fork, return the request with the program to run."""
    server = os.getpid()
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        if "reap" in request:
            pid, status = os.waitpid(request["reap"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                die_with_parent(server)
                return dict(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


def become(program: Mapping[str, Any]) -> None:
    """Make this fork look like a process that was started for the program."""
    os.environ.clear()
    os.environ.update(program["environment"])
    time.tzset()
    os.chdir(program["folder"])
    for number, path in enumerate((os.devnull, *program["files"])):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115
        for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    sys.argv = ["-c", *program["arguments"]]
    sys.orig_argv = [sys.executable, "-P", "-c", program["source"], *program["arguments"]]
    sys.modules["__main__"] = ModuleType("__main__")


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    # Garbage collection in a program would touch, and so copy, the pages of all objects that exist by now.
    gc.collect()
    gc.freeze()
    asked = serve()
    if asked is not None:
        become(asked)
        exec(compile(asked["source"], "<string>", "exec"), sys.modules["__main__"].__dict__)
