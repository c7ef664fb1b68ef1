"""The file and line of the author's code, so that every error of a DAG file names its line."""

import sys
from dataclasses import dataclass
from pathlib import Path

from scheduler.exceptions import DagError

#: The folder of Paceline's own code.
PACKAGE = f"{Path(__file__).parent.parent}/"


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a file."""

    file: str
    line: int


def here() -> Location:
    """The innermost line of the call stack that is outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


def fault(message: str, *, kind: type[DagError] = DagError, at: Location | None = None) -> DagError:
    """An error of the DAG file, with its `file` and `line` set; `at` defaults to the author's current line."""
    at = at or here()
    error = kind(message)
    error.file, error.line = at.file, at.line
    return error
