"""The log file of a try: all output and log records of user code, with lines of Paceline at its start and end.

If a log cannot be written, because the disk is full, the task continues. The data is dropped, and `TryLog.lost` has the reason.
"""

import concurrent.futures
import contextlib
import io
import json
import logging
import os
import pkgutil
import stat
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import tenacity

import paceline
from paceline import secrets_masker
from paceline.exceptions import PacelineError, TaskTimeout
from scheduler.process import log_format
from scheduler.process.masked_output import MaskedOutput
from scheduler.settings import log_paths
from scheduler.store.worker.claims import Claim

#: Frames in these folders are not user code: Paceline's, and those of the retries and futures that it calls.
OUR_FOLDERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        *(Path(__file__).parents[2] / name for name in ("workers", "scheduler", "paceline")),
        Path(tenacity.__file__).parent,
        Path(concurrent.futures.__file__).parent,
    )
)

worker_log = logging.getLogger("paceline.worker")
#: The fields of each line of a try in JSON.
FIELDS = ("dag", "run", "task", "map_index", "try", "dispatch")
LONGEST_HEADER_BYTES = 1 << 16
#: Characters of a rendered template.
LONGEST_FIELD = 20_000


class Log(Protocol):
    """The destination of the output of a try."""

    def open(self, path: str, header: str, claim: Claim | None = None) -> None: ...

    def line(self, text: str, level: str = "INFO") -> None:
        """Write a line of Paceline after the output of user code so far."""

    @property
    def lost(self) -> str | None:
        """The reason for missing lines before the last `line`, such as "No space left on device"; None if they are complete."""

    @property
    def can_close(self) -> bool:
        """Whether `close` can restore the output of the worker. It cannot if user code has closed all files of the process."""

    def error(self, error: BaseException) -> None:
        """Write the traceback of `error`. See `shown`."""

    def close(self) -> None:
        """Restore the output of the worker."""


class TryLog:
    """Redirects file descriptors 1 and 2, sys.stdout, sys.stderr and `logging` of a pool process to the log of a try.

    With `json_lines`, log records and lines of Paceline are JSON objects. Other output stays as it is. `closed` receives the path
    of each log when it is complete.
    """

    def __init__(self, *, json_lines: bool = False, closed: Callable[[str], None] | None = None) -> None:
        self._worker_fds = (os.dup(1), os.dup(2))
        self._worker_streams = (sys.stdout, sys.stderr)
        self._losses = Losses()
        self._streams = (self._stream(1), self._stream(2))
        self._handler = logging.StreamHandler(self._streams[1])
        self._handler.setFormatter(log_format.UtcFormatter())
        self._json_lines = json_lines
        self._closed = closed
        self._path = ""
        self._fields: dict[str, Any] | None = None
        self._handlers: list[logging.Handler] = []
        self._masked: MaskedOutput | None = None

    def open(self, path: str, header: str, claim: Claim | None = None) -> None:
        """Redirect all output to `path`. If it cannot be opened, the output goes to that of the worker."""
        self._losses.first = None
        self._path = path
        if self._json_lines and claim is not None:
            self._fields = _fields(claim)
            self._handler.setFormatter(log_format.JsonFormatter(self._fields))
        if self._streams[0].closed or self._streams[1].closed:
            self._streams = (self._stream(1), self._stream(2))
        try:
            file = log_paths.append(path)
        except OSError as error:
            self._losses.add(error)
            worker_log.error("The log %s cannot be written (%s); its lines are logged here.", path, error)
        else:
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)
        sys.stdout, sys.stderr = self._streams
        self._handler.setStream(self._streams[1])
        if secrets_masker.secrets.texts:  # of something before
            secrets_masker.begin()
        secrets_masker.secrets.on_add = self._mask
        root = logging.root
        self._handlers, root.handlers = root.handlers, [self._handler]
        if root.level != logging.INFO:  # setting it clears the caches of all loggers
            root.setLevel(logging.INFO)
        self._write(header, "INFO")

    def line(self, text: str, level: str = "INFO") -> None:
        self.flush()
        self._write(text, level)
        if self._masked is not None:
            self._masked.settle()

    @property
    def lost(self) -> str | None:
        return self._losses.first

    @property
    def can_close(self) -> bool:
        try:
            for fd in self._worker_fds:
                os.fstat(fd)
        except OSError:
            return False
        return True

    def error(self, error: BaseException) -> None:
        """Write the traceback of `error`. See `shown`. In JSON, it is one line."""
        self.flush()
        text = shown(error)
        if self._fields is None:
            self._losses.write(2, text.encode("utf-8", "backslashreplace"))
        elif text:
            self._write("".join(traceback.format_exception_only(error)).strip(), "ERROR", text)

    def flush(self) -> None:
        for stream in {id(stream): stream for stream in (*self._streams, sys.stdout, sys.stderr)}.values():
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):  # user code closed or replaced it
                continue

    def close(self) -> None:
        self.flush()
        masked, self._masked = self._masked, None
        if masked is not None:
            masked.settle()
        secrets_masker.secrets.on_add = secrets_masker.nothing
        if secrets_masker.secrets.texts:
            secrets_masker.begin()
        os.dup2(self._worker_fds[0], 1)
        os.dup2(self._worker_fds[1], 2)
        if masked is not None:
            masked.close()
        sys.stdout, sys.stderr = self._worker_streams
        logging.root.handlers = self._handlers
        if self._closed is not None:
            self._closed(self._path)

    def _write(self, text: str, level: str, error: str | None = None) -> None:
        is_text = self._fields is None
        line = f"{stamp()} {level} {text}" if is_text else log_format.line(text, level, self._fields or {}, error=error)
        self._losses.write(2, f"{line}\n".encode("utf-8", "backslashreplace"))

    def _mask(self) -> None:
        """Insert the masking pipe, once per try. It is called before user code receives the first secret."""
        if self._masked is None:
            self._masked = MaskedOutput(os.dup(2), (1, 2), secrets_masker.current(), write=self._losses.write)

    def _stream(self, fd: int) -> io.TextIOWrapper:
        # Line buffering keeps the lines of stdout, stderr and subprocesses in order, and loses none when the process dies.
        buffered = io.BufferedWriter(_LossyFile(fd, self._losses))
        return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _fields(claim: Claim) -> dict[str, Any]:
    values = (claim.dag_id, claim.run_id, claim.task_id, claim.map_index, claim.try_number, claim.dispatch_id)
    fields: dict[str, Any] = dict(zip(FIELDS, values, strict=True))
    if claim.map_index < 0:
        del fields["map_index"]
    return fields


class Losses:
    """Records data that could not be written to a log. Writing never raises."""

    def __init__(self) -> None:
        #: The first error.
        self.first: str | None = None

    def write(self, fd: int, data: bytes) -> None:
        """Write all of `data`, or as much as the file accepts."""
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError as error:
            self.add(error)

    def add(self, error: OSError) -> None:
        """Record that data was dropped."""
        self.first = self.first or os.strerror(error.errno or 0)


class _LossyFile(io.FileIO):
    """A descriptor that drops data it cannot write: `print` in user code must not fail because the disk of logs is full."""

    def __init__(self, fd: int, losses: Losses) -> None:
        super().__init__(fd, "w", closefd=False)
        self._losses = losses

    def write(self, data: Any, /) -> int:
        self._losses.write(self.fileno(), bytes(data))
        return len(data)


def keep_rendered(log: str, fields: Mapping[str, Any]) -> None:
    """Write the rendered templates of a try beside its log, for pages. A disk that is full does not fail the task."""
    shown = {
        name: secrets_masker.MASK if secrets_masker.looks_secret(name) else secrets_masker.redact(_text(value))[:LONGEST_FIELD]
        for name, value in fields.items()
    }
    path = log_paths.rendered_path(log)
    with contextlib.suppress(OSError):
        # The newest try replaces the file, whatever user code has put in its place.
        Path(path).unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, log_paths.FILE_MODE)
        with os.fdopen(file, "w", encoding="utf-8", errors="backslashreplace") as stream:
            json.dump(shown, stream)


def _text(value: Any) -> str:
    """A native template can return an object of any class."""
    try:
        return str(value)
    except TaskTimeout:
        raise
    except Exception:
        return f"<{type(value).__name__}>"


def append_reason(path: str, reason: str) -> None:
    """Write the last line of a log whose pool process has ended, in the form of its first line."""
    try:
        fields = _fields_of(path)
        file = log_paths.append(path)
    except OSError:
        return
    line = f"{stamp()} ERROR {reason}" if fields is None else log_format.line(reason, "ERROR", fields)
    Losses().write(file, f"{line}\n".encode("utf-8", "backslashreplace"))
    os.close(file)


def _fields_of(path: str) -> dict[str, Any] | None:
    """The fields of the first line of a log if it is JSON. User code can have replaced the file with anything: then OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        first = file.readline(LONGEST_HEADER_BYTES)
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError):
        return None
    return {name: fields[name] for name in FIELDS if name in fields} if isinstance(fields, dict) else None


class DescriptorHandler(logging.Handler):
    """Writes each record to a file descriptor at once, so that a fork copies neither a filled buffer nor a held lock."""

    def __init__(self, fd: int, formatter: logging.Formatter) -> None:
        super().__init__()
        self._fd = fd
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._fd, f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)


def to_stderr(form: str, **fields: str) -> None:
    """Send the log records of the process to its current stderr, even if file descriptor 2 is redirected later."""
    handler = DescriptorHandler(os.dup(2), log_format.formatter(form, **fields))
    for name, level in (("paceline", logging.INFO), ("celery", logging.WARNING), ("kombu", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    # `paceline.operators` and the like log for tasks. Only their names begin like those of the processes, such as paceline.worker.
    for module in pkgutil.iter_modules(paceline.__path__):
        logging.getLogger(f"paceline.{module.name}").parent = logging.root


def shown(error: BaseException) -> str:
    """Format the traceback of `error`, starting at the frames of user code.

    Empty for an error of Paceline without such frames: its message is the reason of the task, which is enough.
    """
    trace = trim(error.__traceback__)
    is_alone = error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)
    if trace is None and is_alone and isinstance(error, PacelineError):
        return ""
    return "".join(traceback.format_exception(error.with_traceback(trace or error.__traceback__)))


def trim(trace: TracebackType | None) -> TracebackType | None:
    """Return `trace` from the first frame of user code on, or None if there is none."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OUR_FOLDERS):
        trace = trace.tb_next
    return trace


def stamp() -> str:
    """Return the current time for a line of a log."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LoggerStates:
    """The state of this process's loggers before user code could change it."""

    _READ = attrgetter("level", "handlers", "propagate", "disabled")

    def __init__(self) -> None:
        self._disabled = logging.root.manager.disable
        self._named: dict[str, logging.Logger | logging.PlaceHolder] = {}
        self._known: dict[logging.Logger, tuple[int, list[logging.Handler], bool, bool]] = {}

    def note_new(self) -> None:
        """Save the state of loggers that are new since the last call."""
        # A copy: another thread may create a logger in the meantime.
        named = logging.root.manager.loggerDict.copy()
        if named == self._named:
            return
        self._named = named
        for logger in (logging.root, *named.values()):
            if logger not in self._known and isinstance(logger, logging.Logger):  # placeholders have no state
                self._known[logger] = (logger.level, list(logger.handlers), logger.propagate, logger.disabled)

    def restore(self) -> None:
        """Restore the saved state of all known loggers."""
        if logging.root.manager.disable != self._disabled:
            logging.disable(self._disabled)
        # All at once first: a process has a hundred loggers, and tasks rarely change one.
        if list(map(self._READ, self._known)) == list(self._known.values()):
            return
        for logger, (level, handlers, propagate, off) in self._known.items():
            if logger.level != level:
                logger.setLevel(level)
            if logger.handlers != handlers:
                logger.handlers = list(handlers)
            logger.propagate, logger.disabled = propagate, off
