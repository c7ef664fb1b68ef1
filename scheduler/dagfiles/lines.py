"""Lines through pipes with an untrusted peer: their length is bounded, and every wait has a deadline."""

import contextlib
import fcntl
import os
import select
import time

READ_BYTES = 1 << 20
#: Size of a pipe, if the system allows it. Large answers need fewer reads.
PIPE_BYTES = 1 << 20


class LineTooLongError(Exception):
    """A line is longer than the limit."""


class LineReader:
    """Assembles lines that arrive in parts. It reads each byte once."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    @property
    def is_inside(self) -> bool:
        """Whether an incomplete line has arrived."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`. LineTooLongError if a line exceeds the limit."""
        lines = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._add(end)
            lines.append(bytes(self._rest))
            self._rest.clear()
        self._add(rest)
        return lines

    def clear(self) -> None:
        """Discard the incomplete line."""
        self._rest.clear()

    def _add(self, part: bytes) -> None:
        if len(self._rest) + len(part) > self._max_bytes:
            self._rest.clear()
            raise LineTooLongError(f"a line is longer than {self._max_bytes} bytes")
        self._rest += part


def prepare(fd: int) -> None:
    """Make this end of a pipe non-blocking, and enlarge the pipe."""
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def read(fd: int) -> bytes | None:
    """Read up to READ_BYTES from a prepared pipe. None if it is empty; no bytes if its other end is closed."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None


def is_readable(fd: int, timeout_s: float = 0.0) -> bool:
    """Wait until there is data to read or the other end is closed. False after the timeout."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def write(fd: int, data: bytes, *, timeout_s: float) -> None:
    """Write all of `data` to a prepared pipe. TimeoutError if it is not read in time; BrokenPipeError if it is closed."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    left = memoryview(data)
    while left:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"the pipe was not read for {timeout_s:g} s")
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(fd, left) :]
