"""Processes that are forked from the worker without an exec: each reports itself through a pipe before other code runs in it."""

import contextlib
import os

import psutil

#: Bytes of the pipe that are read at once.
CHUNK = 65_536


class Forks:
    """Create it in the worker. Then that process calls `report`, and the process that reads the reports calls `listen`."""

    def __init__(self) -> None:
        self._reports, self._in = os.pipe()
        os.set_blocking(self._reports, False)
        os.set_blocking(self._in, False)
        #: By process id when it started, since the id may be used again.
        self._started: dict[int, int] = {}
        #: Whether no process is left that could report: each has ended, or closed all its files.
        self.gone = False

    def report(self) -> None:
        """From now on, each process that is forked from this one, directly or not, reports itself."""
        os.close(self._reports)
        os.register_at_fork(after_in_child=self._report_this)

    def stop(self) -> None:
        """Report no more; the pipe is closed."""
        with contextlib.suppress(OSError):
            os.close(self._in)
        self._in = -1

    def listen(self) -> None:
        """This process reads."""
        os.close(self._in)

    def read(self) -> None:
        """Read the reports, and forget processes that have ended."""
        text = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reports, CHUNK):
                text += chunk
            self.gone = True
        for line in text.decode().splitlines():
            pid, _, started_at = line.partition(" ")
            self._started[int(pid)] = int(started_at)
        self._started = {pid: at for pid, at in self._started.items() if _runs(pid, at)}

    def running(self) -> list[psutil.Process]:
        """The processes that had not ended at the last `read`."""
        processes = []
        for pid in self._started:
            with contextlib.suppress(psutil.Error):
                processes.append(psutil.Process(pid))
        return processes

    def _report_this(self) -> None:
        if self._in >= 0:
            with contextlib.suppress(OSError, ValueError):
                os.write(self._in, f"{os.getpid()} {_state(os.getpid())[1]}\n".encode())


def _state(pid: int) -> tuple[bytes, int]:
    """The letter of a process's state, and when it started, in ticks since the machine did."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()
    return fields[0], int(fields[19])


def _runs(pid: int, started_at: int) -> bool:
    try:
        letter, at = _state(pid)
    except (OSError, ValueError):
        return False
    return at == started_at and letter != b"Z"
