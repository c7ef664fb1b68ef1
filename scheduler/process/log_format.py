"""The forms of log lines of processes and tasks: text for people, or one JSON object for each line."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

JSON = "json"


class UtcFormatter(logging.Formatter):
    """Formats records as `2026-01-02T03:04:05.678Z LEVEL logger: message`."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects with `at`, `level`, `logger`, `message`, `error` (a traceback), and the given fields.

    Each is one line, because JSON escapes line breaks.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        error = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else record.exc_text
        if record.stack_info:
            error = f"{error}\n{record.stack_info}" if error else record.stack_info
        at = datetime.fromtimestamp(record.created, UTC)
        return line(record.getMessage(), record.levelname, self._fields | {"logger": record.name}, at=at, error=error)


def line(message: str, level: str, fields: Mapping[str, Any], *, at: datetime | None = None, error: str | None = None) -> str:
    """One line of JSON, at this moment unless `at` is given."""
    stamp = (at or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = {"at": stamp, "level": level, **fields, "message": message}
    if error is not None:
        record["error"] = error
    return json.dumps(record, ensure_ascii=False, default=str)


def to_stderr(form: str, role: str) -> None:
    """Write the log records of this process to its error output, in the form of logs.format."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
    logging.root.handlers[0].setFormatter(formatter(form, role=role))


def formatter(form: str, **fields: Any) -> logging.Formatter:
    """The formatter of a process for this value of logs.format. Only JSON has the fields."""
    return JsonFormatter(fields) if form == JSON else UtcFormatter()
