"""One log file for each try: everything user code prints or logs, and our words at its beginning and end.

A log that cannot be written, because its disk is full, ends nothing: what the file does not take is dropped, and
`TryLog.lost` says so.
"""

import io
import logging
import os
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from scheduler.exceptions import PacelineError
from scheduler.masking import secrets_masker
from scheduler.masking.output import MaskedOutput
from scheduler.settings import log_paths

#: Frames in these folders are ours, not the author's.
OUR_FOLDERS = tuple(f"{Path(__file__).parent.parent / name}{os.sep}" for name in ("workers", "scheduler"))

worker_log = logging.getLogger("paceline.worker")
try_path = log_paths.try_path
component = log_paths.component


class TryLog:
    """Sends file descriptors 1 and 2, sys.stdout, sys.stderr and `logging` of a pool child to the file of a try and back."""

    def __init__(self) -> None:
        self._worker_fds = (os.dup(1), os.dup(2))
        self._worker_streams = (sys.stdout, sys.stderr)
        self._losses = Losses()
        self._streams = (self._stream(1), self._stream(2))
        self._handler = logging.StreamHandler(self._streams[1])
        self._handler.setFormatter(UtcFormatter())
        self._handlers: list[logging.Handler] = []
        self._masked: MaskedOutput | None = None

    def open(self, path: str, header: str) -> None:
        """Everything goes to `path` from here on; a file that cannot be opened leaves it with the worker's own output."""
        self._losses.first = None
        if self._streams[0].closed or self._streams[1].closed:
            self._streams = (self._stream(1), self._stream(2))
        try:
            file = log_paths.append(path)
        except OSError as error:
            self._losses.add(error)
            worker_log.error("The log %s cannot be written (%s); its lines go here.", path, error)
        else:
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)
        sys.stdout, sys.stderr = self._streams
        self._handler.setStream(self._streams[1])
        secrets_masker.begin(self._mask)
        root = logging.root
        self._handlers, root.handlers = root.handlers, [self._handler]
        if root.level != logging.INFO:  # setting it forgets what all loggers know
            root.setLevel(logging.INFO)
        self.line(header)

    def line(self, text: str, level: str = "INFO") -> None:
        """Write a line of our own, after what user code has printed so far."""
        self.flush()
        self._losses.write(2, f"{stamp()} {level} {text}\n".encode("utf-8", "backslashreplace"))
        if self._masked is not None:
            self._masked.settle()

    @property
    def lost(self) -> str | None:
        """Why lines are missing in this log, such as "No space left on device"; None if it is complete."""
        self.flush()
        return self._losses.first

    def error(self, error: BaseException) -> None:
        """Write the traceback of `error`, see `shown`."""
        self.flush()
        self._losses.write(2, shown(error).encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        for stream in {id(stream): stream for stream in (*self._streams, sys.stdout, sys.stderr)}.values():
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):  # user code closed or replaced it
                continue

    def close(self) -> None:
        """Back to the worker's own output."""
        self.flush()
        masked, self._masked = self._masked, None
        if masked is not None:
            masked.settle()
        secrets_masker.begin()
        os.dup2(self._worker_fds[0], 1)
        os.dup2(self._worker_fds[1], 2)
        if masked is not None:
            masked.close()
        sys.stdout, sys.stderr = self._worker_streams
        logging.root.handlers = self._handlers

    def _mask(self) -> None:
        """Lay the masking pipe, once a try: this is called before its first secret is handed out."""
        if self._masked is None:
            self._masked = MaskedOutput(os.dup(2), (1, 2), secrets_masker.current(), write=self._losses.write)

    def _stream(self, fd: int) -> io.TextIOWrapper:
        # Line by line: lines of stdout, stderr and subprocesses keep their order, and none is lost when the process dies.
        buffered = io.BufferedWriter(_LossyFile(fd, self._losses))
        return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


class Losses:
    """What could not be written into a log; writing never raises."""

    def __init__(self) -> None:
        #: Why, the first time.
        self.first: str | None = None

    def write(self, fd: int, data: bytes) -> None:
        """All of it, or as much as the file takes."""
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError as error:
            self.add(error)

    def add(self, error: OSError) -> None:
        """Something was dropped."""
        self.first = self.first or os.strerror(error.errno or 0)


class _LossyFile(io.FileIO):
    """A descriptor that drops what it cannot take: a `print` of user code must not fail because the disk of logs is full."""

    def __init__(self, fd: int, losses: Losses) -> None:
        super().__init__(fd, "w", closefd=False)
        self._losses = losses

    def write(self, data: Any, /) -> int:
        self._losses.write(self.fileno(), bytes(data))
        return len(data)


class UtcFormatter(logging.Formatter):
    """2026-01-02T03:04:05.678Z LEVEL logger: message"""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")


def append_reason(path: str, reason: str) -> None:
    """Write the last line of a log whose child can no longer do it."""
    try:
        file = log_paths.append(path)
    except OSError:
        return
    Losses().write(file, f"{stamp()} ERROR {reason}\n".encode("utf-8", "backslashreplace"))
    os.close(file)


class DescriptorHandler(logging.Handler):
    """Writes each record to a file descriptor at once, so that a fork finds no buffer filled and no lock of a stream held."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self.setFormatter(UtcFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._fd, f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)


def to_stderr() -> None:
    """Let the process's own log lines go to where its stderr is now, whatever later happens to file descriptor 2."""
    handler = DescriptorHandler(os.dup(2))
    for name, level in (("paceline", logging.INFO), ("celery", logging.WARNING), ("kombu", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def shown(error: BaseException) -> str:
    """The traceback of `error`, beginning at the author's frames.

    Nothing for an error of ours without any: its sentence, which is the reason of the task, tells all.
    """
    trace = trim(error.__traceback__)
    is_alone = error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)
    if trace is None and is_alone and isinstance(error, PacelineError):
        return ""
    return "".join(traceback.format_exception(error.with_traceback(trace or error.__traceback__)))


def trim(trace: TracebackType | None) -> TracebackType | None:
    """`trace` from the first frame that is not ours; None if every frame is."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OUR_FOLDERS):
        trace = trace.tb_next
    return trace


def stamp() -> str:
    """The time for a line of a log."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
