"""Advice for imports and expressions whose error message from Python does not help."""

import ast
import importlib
import importlib.util
import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paceline.airflow import hook, names
from paceline.airflow.table import REASONS, RENAMED
from paceline.authoring import source
from paceline.authoring.arguments import near

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
