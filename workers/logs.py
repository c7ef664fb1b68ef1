"""One log file for each try: everything user code prints or logs, and our words at its beginning and end."""

import io
import logging
import os
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from scheduler import log_paths, masking
from scheduler.masked_output import MaskedOutput

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
        self._streams = (_stream(1), _stream(2))
        self._handler = logging.StreamHandler(self._streams[1])
        self._handler.setFormatter(UtcFormatter())
        self._handlers: list[logging.Handler] = []
        self._masked: MaskedOutput | None = None

    def open(self, path: str, header: str) -> None:
        """Everything goes to `path` from here on; a file that cannot be written leaves it with the worker's own output."""
        if self._streams[0].closed or self._streams[1].closed:
            self._streams = (_stream(1), _stream(2))
        try:
            file = log_paths.append(path)
        except OSError as error:
            worker_log.error("The log %s cannot be written (%s); its lines go here.", path, error)
        else:
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)
        sys.stdout, sys.stderr = self._streams
        self._handler.setStream(self._streams[1])
        masking.begin(self._mask)
        root = logging.root
        self._handlers, root.handlers = root.handlers, [self._handler]
        if root.level != logging.INFO:  # setting it forgets what all loggers know
            root.setLevel(logging.INFO)
        self.line(header)

    def line(self, text: str, level: str = "INFO") -> None:
        """Write a line of our own, after what user code has printed so far."""
        self.flush()
        data = f"{stamp()} {level} {text}\n".encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(2, data) :]
        if self._masked is not None:
            self._masked.settle()

    def error(self, error: BaseException) -> None:
        """Write the traceback of `error`, beginning at the author's frames."""
        self.flush()
        text = "".join(traceback.format_exception(error.with_traceback(trim(error.__traceback__))))
        with _stream(2) as stream:
            stream.write(text)

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
        masking.begin()
        os.dup2(self._worker_fds[0], 1)
        os.dup2(self._worker_fds[1], 2)
        if masked is not None:
            masked.close()
        sys.stdout, sys.stderr = self._worker_streams
        logging.root.handlers = self._handlers

    def _mask(self) -> None:
        """Lay the masking pipe, once a try: this is called before its first secret is handed out."""
        if self._masked is None:
            self._masked = MaskedOutput(os.dup(2), (1, 2), masking.current())


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
    try:
        os.write(file, f"{stamp()} ERROR {reason}\n".encode("utf-8", "backslashreplace"))
    finally:
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


def trim(trace: TracebackType | None) -> TracebackType | None:
    """`trace` from the first frame that is not ours; all of it if every frame is."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(OUR_FOLDERS):
        found = found.tb_next
    return found or trace


def stamp() -> str:
    """The time for a line of a log."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _stream(fd: int) -> io.TextIOWrapper:
    # Line by line: lines of stdout, stderr and subprocesses keep their order, and none is lost when the process dies.
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
