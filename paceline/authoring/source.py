"""The file and line of the author's code, so that every error of a DAG file names its line."""

import ast
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from paceline.exceptions import DagError

#: The module that runs DAG files.
LOADER = "scheduler.dagfiles.load"
#: The folders of Paceline's own code.
PACKAGES = tuple(f"{Path(__file__).parents[2] / name}/" for name in ("paceline", "scheduler"))


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a file."""

    file: str
    line: int


def here() -> Location:
    """The innermost line of the call stack that is outside these packages."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


def _is_ours(frame: FrameType) -> bool:
    """Whether the code is that of these packages. The `__init__` of a dataclass has no file."""
    file = frame.f_code.co_filename
    return file.startswith(PACKAGES) or (file == "<string>" and frame.f_globals.get("__name__", "").startswith("paceline."))


def is_ours(code: CodeType) -> bool:
    """Whether this is code of a file of these packages."""
    return code.co_filename.startswith(PACKAGES)


def is_called_from_outside() -> bool:
    """Whether the caller of the function that calls this one is outside these packages."""
    return not sys._getframe(2).f_code.co_filename.startswith(PACKAGES)


def may_be_caught() -> bool:
    """Whether a line of the call stack outside these packages is in the body of a `try`, or in a file that cannot be read."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_globals.get("__name__") == LOADER:
            return False
        if not file.startswith(PACKAGES) and any(first <= frame.f_lineno <= last for first, last in _tries(file)):
            return True
        frame = frame.f_back
    return True


def traceback_to(error: BaseException) -> TracebackType | None:
    """The traceback of an error that is not raised from here, with the callers up to the DAG file."""
    trace, frame = error.__traceback__, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != LOADER:
        trace, frame = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno), frame.f_back  # type: ignore[assignment]
    return trace


def _tries(file: str) -> list[tuple[float, float]]:
    """The first and last lines of the bodies of `try` statements."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return [(0, math.inf)]
    tries = (node for node in ast.walk(tree) if isinstance(node, ast.Try | ast.TryStar))
    return [(node.body[0].lineno, node.body[-1].end_lineno or math.inf) for node in tries]


def fault(message: str, *, kind: type[DagError] = DagError, at: Location | None = None) -> DagError:
    """An error of the DAG file, with its `file` and `line` set; `at` defaults to the author's current line."""
    at = at or here()
    error = kind(message)
    error.file, error.line = at.file, at.line
    return error
