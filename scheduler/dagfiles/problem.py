"""Import errors of DAG files: a message for the user, the line, the traceback, and advice where the message of Python does not
help.
"""

import ast
import importlib
import importlib.util
import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paceline.airflow import hook, names
from paceline.airflow.table import REASONS, RENAMED
from paceline.authoring import source
from paceline.authoring.arguments import near
from paceline.exceptions import DagError, DagErrors, PacelineError
from scheduler.store.dags.import_errors import Problem

_PROVIDER = (
    "install the provider package of the service next to Paceline with `pip install --no-deps`, or use its Python client in a @task"
    " function"
)
_LISTS = {"list", "tuple", "set"}
_OPERANDS = re.compile(r"unsupported operand type\(s\) for (>>|<<): '(\w+)' and '(\w+)'")


def advice(error: BaseException, path: Path) -> str | None:
    """A message for an exception of a DAG file; None if that of Python is good enough."""
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] in {"airflow", "paceline", "scheduler"}:
        return _of_imports(error, path)
    if isinstance(error, TypeError) and (operands := _OPERANDS.match(str(error))):
        if "function" in operands.groups():
            return f"{operands[1]} joins tasks, not functions; decorate each function with @task, and call it: first() >> second()."
        if not {operands[2], operands[3]} <= _LISTS:
            return _of_edge(*operands.groups())
        return (
            f"Python cannot join two lists with {operands[1]}. Write cross_downstream(first, second) for an edge from each task"
            " to each, or chain(first, second) for pairs; both are in paceline."
        )
    return _of_type_error(str(error)) if isinstance(error, TypeError) else None


def _of_edge(operator: str, left: str, right: str) -> str | None:
    other = right if left in _LISTS else left
    if {left, right}.isdisjoint(_LISTS):
        return None
    return f"{operator} joins tasks, results of tasks, groups, or lists of them; on one side is a list, and on the other a {other}."


def _of_type_error(text: str) -> str | None:
    if "XComArg" in text:
        return (
            f"The result of a task is known only after it has run, so the DAG file cannot compute with it ({text}); pass it to a"
            " @task function, and compute there."
        )
    if text.startswith("DAG.__init__() missing"):
        return 'A DAG needs an ID: write DAG("my_dag", ...).'
    if text.startswith("DAG.__init__() takes"):
        return 'Only the ID of a DAG is given by position: write DAG("my_dag", schedule=..., description=...).'
    return None


def _of_imports(error: ImportError, path: Path) -> str | None:
    found = [(f"line {line}", text) for line, text in _imports(path)]
    if not found and (module := _module_of(error)) is not None:
        # The file itself is right: it imports a module of the DAGs folder that is not.
        found = [(f"{module.name}, line {line}", text) for line, text in _imports(module)]
        if len(found) == 1:
            return ": ".join(found[0])
    elif len(found) == 1:
        return found[0][1]
    return "\n".join(("Correct these imports:", *map(": ".join, found))) if found else None


def _module_of(error: BaseException) -> Path | None:
    """The file with the import that failed: the innermost one of the author."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [file for file in files if not file.startswith(("<", *source.PACKAGES)) and "importlib" not in file]
    return Path(own[-1]) if own and Path(own[-1]).is_file() else None


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of imports that do not work, each with the cause and the correction."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        text = ""
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            of_module = {"airflow": _of_airflow, "paceline": _of_ours, "scheduler": _of_engine}.get(node.module.split(".")[0])
            text = of_module(node.module, [alias.name for alias in node.names]) if of_module else ""
        elif isinstance(node, ast.Import):
            text = "".join(_of_airflow(alias.name, []) for alias in node.names if alias.name.split(".")[0] == "airflow")
        if text and isinstance(node, ast.stmt):
            yield node.lineno, text


def _of_airflow(module: str, given: list[str]) -> str:
    """The sentences on an import of Airflow's names; empty if there is nothing to correct, because the import hook is on."""
    if hook.is_installed():
        return "" if not names.is_known(module) and _is_installed(module) else " ".join(names.complaints(module, given))
    places = {name: module if names.find(module, name) else names.home(name) or module for name in given}
    lacks = names.complaints(module, [name for name in given if places[name] == module])
    if not names.is_known(module):
        return " ".join(["Airflow is not installed.", *lacks])
    lines: dict[str, list[str]] = {}
    for name in given:
        if (found := names.find(places[name], name)) is not None:
            place, new = (found.module, found.name) if found.name else found.module.rsplit(".", 1)
            lines.setdefault(place, []).append(new if new == name or name in RENAMED else f"{new} as {name}")
    text = "; ".join(f"from {place} import {', '.join(found)}" for place, found in lines.items()) or "import paceline"
    advice = f"write `{text}`" if lines or not given else "remove this line"
    return " ".join([f"Airflow is not installed; {advice}.", *lacks])


def _is_installed(module: str) -> bool:
    """Whether this is a module of an installed provider package. The error is then in what it imports itself."""
    with suppress(Exception):  # the search imports the packages around it
        return importlib.util.find_spec(module) is not None
    return False


def _of_ours(module: str, given: list[str]) -> str:
    try:
        known = importlib.import_module(module)
    except ImportError:
        modules = [f"paceline.{name}" for name in ("operators", "sensors", "timetables", "triggers", "exceptions", "quality")]
        return f"There is no module {module}{near(module, ['paceline', *modules])}"
    missing = [name for name in given if name != "*" and not _has(known, module, name)]
    return " ".join(
        f"Paceline has no {name}: {REASONS[name]}." if name in REASONS else f"{module} has no {name!r}{_instead(known, name)}"
        for name in missing
    )


def _of_engine(module: str, given: list[str]) -> str:
    """The sentence on an import from the engine, which authors wrote before there was a package `paceline`."""
    authored = module.replace("scheduler", "paceline", 1)
    with suppress(ImportError):
        known = importlib.import_module(authored)
        if all(name == "*" or _has(known, authored, name) for name in given):
            return f"DAG files import from paceline; write `from {authored} import {', '.join(given)}`."
    return ""


def _instead(known: object, name: str) -> str:
    """The advice that ends the message about a name that a Paceline module does not have."""
    if place := _place(name):
        return place
    # Names of operators have the same ending, so those that mean something else are similar too.
    if (nearest := near(name, _public(known), least=0.8)) != ".":
        return nearest
    if name.endswith(("Operator", "Sensor", "Hook")):
        return f"; {_PROVIDER}."
    return "; the reference of authoring in the documentation lists all names."


def _has(known: object, module: str, name: str) -> bool:
    # Only a package has modules in it.
    return hasattr(known, name) or (hasattr(known, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None)


def _place(name: str) -> str:
    """Where the name is, if it is in another module."""
    new = RENAMED.get(name, name)
    for place in ("paceline", "paceline.operators", "paceline.sensors", "paceline.triggers", "paceline.exceptions"):
        if hasattr(importlib.import_module(place), new):
            return f"; write `from {place} import {new}`."
    return ""


def _public(known: object) -> list[str]:
    return [name for name in getattr(known, "__all__", dir(known)) if not name.startswith("_")]


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
