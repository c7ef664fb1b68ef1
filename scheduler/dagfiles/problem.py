"""Import errors of DAG files: a message for the user, the line, and the traceback."""

import re
import signal
import traceback
from pathlib import Path

from paceline.authoring import source
from paceline.exceptions import DagError, DagErrors, PacelineError
from scheduler.dagfiles.advice import advice
from scheduler.store.dags.import_errors import Problem

#: The part of a report that is searched. faulthandler reports up to a hundred frames of each thread.
MAX_REPORT_CHARACTERS = 1 << 20
MEANINGS: dict[int, str] = {
    signal.SIGSEGV: "a segmentation fault in a library it uses",
    signal.SIGABRT: "a library that it uses aborted",
    signal.SIGBUS: "a bad memory access in a library it uses",
    signal.SIGKILL: "killed from outside, perhaps for lack of memory",
}
#: A line of a report of faulthandler, which starts with the innermost call.
FAULT_LINE = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d{1,9}) in ', re.MULTILINE)


def of_exception(error: BaseException, path: Path, *, memory_limit_mb: int) -> Problem:
    """Return the problem for an exception that was raised while `path` was parsed."""
    line = _line_in(error, path)
    if isinstance(error, MemoryError):
        # The frames still hold the allocated memory. Without it, there is not enough left to format them.
        traceback.clear_frames(error.__traceback__)
        message = (
            f"The file needs more than {memory_limit_mb} MiB of memory to be read: move the work into a task,"
            " or raise scheduler.dag_file_memory_limit_mb."
        )
    elif isinstance(error, SystemExit):
        message = f"The file calls sys.exit({error.code!r}) while it is read; a DAG file only defines DAGs."
    elif isinstance(error, DagError):
        message = str(error)
    elif isinstance(error, PacelineError):
        message = _in_module(error, path) + str(error)
    elif isinstance(error, OSError) and error.filename == str(path):
        message = f"The file cannot be read: {error.strerror}."
    else:
        words = traceback.format_exception_only(error)
        message = _advised(error, path) or (words[-1] if isinstance(error, SyntaxError) else words[0]).strip()
    return Problem.make(message, line, "\n".join(map(_trace, error.errors)) if isinstance(error, DagErrors) else _trace(error))


def _in_module(error: BaseException, path: Path) -> str:
    """The module and line of an error that is not in the DAG file itself, but in a module that it imports."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if not file.startswith(("<", *source.PACKAGES)) and "importlib" not in file]
    return "" if not own or own[-1][0] == str(path) else f"{Path(own[-1][0]).name}, line {own[-1][1]}: "


def _advised(error: BaseException, path: Path) -> str | None:
    try:
        return advice(error, path)
    except Exception:
        return None  # the file may have changed in the meantime


def of_ending(code: int, path: Path, *, report: str, output: str) -> Problem:
    """Return the problem of a child that ended without a result.

    `code` is its exit code, negative for a signal. `report` is the report of faulthandler.
    """
    if code < 0:
        meaning = f": {MEANINGS[-code]}" if -code in MEANINGS else ""
        message = f"Reading the file ended its process by {ending(code)}{meaning}."
    else:
        message = f"The file ended its process with exit code {code} (os._exit?) while it was read; a DAG file only defines DAGs."
    return Problem.make(message, _faulty_line(report, path), _with_output(report, output))


def of_timeout(limit_s: float, path: Path, *, report: str, output: str) -> Problem:
    """Return the problem of a file that exceeded the time limit."""
    message = (
        f"Reading the file took more than {limit_s:g} s: move the work into a task, or raise scheduler.dag_file_processor_timeout."
    )
    return Problem.make(message, _faulty_line(report, path), _with_output(report, output))


def ending(code: int) -> str:
    """Describe an exit code, negative for a signal."""
    if code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def of_answer(fault: str) -> Problem:
    """Return the problem of a child whose answer is invalid."""
    return Problem.make(
        f"The process that read the file gave an invalid answer ({fault}): code in the file writes into the pipe"
        " of its process, or changes the modules of Paceline."
    )


def of_flood(limit_bytes: int) -> Problem:
    """Return the problem of a child whose answer is too large."""
    return Problem.make(f"The DAGs of the file take more than {limit_bytes >> 20} MiB; split the file.")


def _line_in(error: BaseException, path: Path) -> int | None:
    """Return the line that the error names, or the innermost line of `path` in its traceback."""
    for file_name, line_name in (("filename", "lineno"), ("file", "line")):  # of SyntaxError, of DagError
        line = getattr(error, line_name, None)
        if getattr(error, file_name, None) == str(path) and isinstance(line, int) and 0 <= line < 2**31:
            return line
    lines = [at for frame, at in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return lines[-1] if lines else None


def _trace(error: BaseException) -> str:
    """Format the traceback without the frames of Paceline and the import system."""
    trace = traceback.TracebackException.from_exception(error)
    pending: list[traceback.TracebackException | None] = [trace]
    while pending:
        part = pending.pop()
        if part is not None:
            part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if not _ours(frame.filename)])
            pending += [part.__cause__, part.__context__]
    return "".join(trace.format())


def _ours(filename: str) -> bool:
    return filename.startswith((*source.PACKAGES, "<frozen "))


def _faulty_line(report: str, path: Path) -> int | None:
    for match in FAULT_LINE.finditer(report[:MAX_REPORT_CHARACTERS]):
        if match["file"] == str(path):
            return int(match["line"])
    return None


def _with_output(report: str, output: str) -> str:
    lines = report[:MAX_REPORT_CHARACTERS].strip().splitlines()
    report = "\n".join(line for line in lines if not (match := FAULT_LINE.match(line)) or not _ours(match["file"]))
    return "\n".join(part for part in (report, f"Output:\n{output.strip()}" if output.strip() else "") if part)
