"""What to write in place of imports and expressions for which Python only has a message of its own."""

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from scheduler.authoring.arguments import near

#: Airflow's modules, and ours with the same names.
COUNTERPARTS = (
    (re.compile(r"airflow(\.providers\.standard)?\.operators(\..+)?"), "scheduler.operators"),
    (re.compile(r"airflow\.providers\.apache\.spark\.operators(\..+)?"), "scheduler.operators"),
    (re.compile(r"airflow(\.providers\.standard)?\.sensors(\..+)?"), "scheduler.sensors"),
    (re.compile(r"airflow(\.providers\.standard)?\.triggers(\..+)?"), "scheduler.triggers"),
    (re.compile(r"airflow(\.sdk)?\.timetables(\..+)?"), "scheduler.timetables"),
    (re.compile(r"airflow(\.sdk)?\.exceptions"), "scheduler.exceptions"),
    (re.compile(r"airflow(\.(sdk|models|decorators|datasets|assets|utils)(\..+)?)?"), "scheduler"),
)
RENAMED = {
    "AirflowException": "PacelineError",
    "AirflowFailException": "FailTask",
    "AirflowSkipException": "SkipTask",
    "AirflowTaskTimeout": "TaskTimeout",
    "AirflowSensorTimeout": "SensorTimeout",
    "Dataset": "Asset",
    "DummyOperator": "EmptyOperator",
}
_OPERANDS = re.compile(r"unsupported operand type\(s\) for (>>|<<): '(list|tuple|set|function)' and '(list|tuple|set|function)'")


def advice(error: BaseException, path: Path) -> str | None:
    """A message for an exception of a DAG file; None if that of Python is good enough."""
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] in {"airflow", "scheduler"}:
        found = list(_imports(path))
        if len(found) > 1:
            return "\n".join(("Correct these imports:", *(f"line {line}: {text}" for line, text in found)))
        return found[0][1] if found else None
    if isinstance(error, TypeError) and (operands := _OPERANDS.match(str(error))):
        if "function" in operands.groups():
            return f"{operands[1]} joins tasks, not functions; decorate each function with @task, and call it: first() >> second()."
        return (
            f"Python cannot join two lists with {operands[1]}. Write cross_downstream(first, second) for an edge from each task"
            " to each, or chain(first, second) for pairs; both are in scheduler."
        )
    return None


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of imports that do not work, each with the sentence that says why and what to write."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        text = ""
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            of_module = {"airflow": _of_airflow, "scheduler": _of_ours}.get(node.module.split(".")[0])
            text = of_module(node.module, [alias.name for alias in node.names]) if of_module else ""
        elif isinstance(node, ast.Import):
            text = "".join(_of_airflow(alias.name, []) for alias in node.names if alias.name.split(".")[0] == "airflow")
        if text and isinstance(node, ast.stmt):
            yield node.lineno, text


def _of_airflow(module: str, names: list[str]) -> str:
    ours = next((ours for pattern, ours in COUNTERPARTS if pattern.fullmatch(module)), None)
    if ours is None:
        return f"Airflow is not installed, and Paceline has no counterpart of {module}."
    lines: dict[str, list[str]] = {}
    missing = []
    for name in names:
        new = RENAMED.get(name, name)
        place = next((place for place in (ours, "scheduler") if hasattr(importlib.import_module(place), new)), None)
        lines.setdefault(place, []).append(new) if place else missing.append(name)
    text = "; ".join(f"from {place} import {', '.join(found)}" for place, found in lines.items()) or f"import {ours}"
    found = f"write `{text}`" if lines or not names else "remove this line"
    return f"Airflow is not installed; {found}." + (f" Paceline has no {', '.join(missing)}." if missing else "")


def _of_ours(module: str, names: list[str]) -> str:
    try:
        known = importlib.import_module(module)
    except ImportError:
        modules = [f"scheduler.{name}" for name in ("operators", "sensors", "timetables", "triggers", "exceptions", "quality")]
        return f"There is no module {module}{near(module, ['scheduler', *modules])}"
    missing = [name for name in names if name != "*" and not _has(known, module, name)]
    return " ".join(f"{module} has no {name!r}{_place(name) or near(name, _public(known))}" for name in missing)


def _has(known: object, module: str, name: str) -> bool:
    # Only a package has modules in it.
    return hasattr(known, name) or (hasattr(known, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None)


def _place(name: str) -> str:
    """Where the name is, if it is in another module."""
    new = RENAMED.get(name, name)
    for place in ("scheduler", "scheduler.operators", "scheduler.sensors", "scheduler.triggers", "scheduler.exceptions"):
        if hasattr(importlib.import_module(place), new):
            return f"; write `from {place} import {new}`."
    return ""


def _public(known: object) -> list[str]:
    return [name for name in getattr(known, "__all__", dir(known)) if not name.startswith("_")]
