"""Lines through pipes whose other end need not be trusted: a bounded length, and no wait without a deadline."""

import contextlib
import fcntl
import os
import select
import time

READ_BYTES = 1 << 20
#: What a pipe holds, if the system allows it: large answers take fewer turns.
PIPE_BYTES = 1 << 20


class LineTooLongError(Exception):
    """More bytes came without the end of a line than a line may have."""


class LineReader:
    """Puts together the lines that arrive in parts; each byte is looked at once."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    @property
    def is_inside(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`; LineTooLongError if one is longer than it may be."""
        lines = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._add(end)
            lines.append(bytes(self._rest))
            self._rest.clear()
        self._add(rest)
        return lines

    def clear(self) -> None:
        """Forget the line that has begun."""
        self._rest.clear()

    def _add(self, part: bytes) -> None:
        if len(self._rest) + len(part) > self._max_bytes:
            self._rest.clear()
            raise LineTooLongError(f"a line is longer than {self._max_bytes} bytes")
        self._rest += part


def prepare(fd: int) -> None:
    """Let no read or write of this end of a pipe wait."""
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def read(fd: int) -> bytes | None:
    """What a prepared pipe holds now, up to READ_BYTES; None if nothing, no bytes if its other end is closed."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None


def is_readable(fd: int, timeout_s: float = 0.0) -> bool:
    """Whether there is something to read, or the other end is closed, within this time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def write(fd: int, data: bytes, *, timeout_s: float) -> None:
    """Write all of `data` into a prepared pipe; TimeoutError if nobody takes it in time, BrokenPipeError if nobody can."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    left = memoryview(data)
    while left:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"nobody read from the pipe for {timeout_s:g} s")
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(fd, left) :]
