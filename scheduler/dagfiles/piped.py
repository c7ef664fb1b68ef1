"""A process of a fork server, as the scheduler sees it: one pipe for requests and one for answers."""

import contextlib
import subprocess
import sys
from collections.abc import Mapping

from scheduler.dagfiles import lines, process_tree


class Piped:
    """A running module. In its own session the scheduler alone handles Ctrl-C, and the processes of user code can be found."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._process = process_tree.start(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._pipes = self._process.stdin, self._process.stdout
        self.requests_fd, self.answers_fd = (pipe.fileno() for pipe in self._pipes)
        for fd in (self.requests_fd, self.answers_fd):
            lines.prepare(fd)

    def end_requests(self) -> None:
        """End its input, so that it kills its children and exits."""
        with contextlib.suppress(OSError):
            self._pipes[0].close()

    def interrupt(self) -> None:
        """Kill its session. Any thread may do that."""
        process_tree.kill_session(self._process.pid)

    def kill(self) -> int:
        """End the process and all its descendants. Returns its exit code."""
        self.interrupt()  # before the process is reaped: until then no other process can have its ID
        code = self._process.wait()
        process_tree.ended(self._process.pid)
        process_tree.kill_strays()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        return code
