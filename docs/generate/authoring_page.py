"""The reference of authoring: every name that DAG files import, with every argument, from signatures and docstrings."""

import enum
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

from docs.generate import argument_meanings as meanings
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.dag import DAG, DagArguments
from paceline.authoring.fields import Field, parameters
from paceline.authoring.task_arguments import TaskArguments

#: The modules that DAG files import from, with the titles of their sections.
MODULES = {
    "paceline": "DAGs and tasks",
    "paceline.operators": "Operators",
    "paceline.sensors": "Sensors",
    "paceline.timetables": "Timetables",
    "paceline.triggers": "Triggers",
    "paceline.tables": "Tables",
    "paceline.quality": "Data quality",
}
MISSING = object()
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(\[])")
#: Backticks in a sentence that names many arguments.
LIST_MARKS = 8
STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
#: Classes whose methods and constants DAG files use, with the members that they do not use.
METHODS: dict[str, set[str]] = {
    "Variable": set(),
    "Connection": {"check", "as_dict", "parse"},
    "DeadlineReference": set(),
    "Suite": set(),
    "XComArg": {"leaves", "iter_references", "resolve"},
    "BaseTrigger": set(),
    "TaskInstance": set(),
}


def lines() -> list[str]:
    """The lines of docs/reference/authoring.md below its title."""
    text = [
        "Every name that a DAG file imports, with every argument. A wrong or unknown argument is an import error that names the",
        "line of the DAG file. A time is a timedelta, or a number of seconds where the type allows float.",
        "",
        "- [Arguments of a DAG](#arguments-of-a-dag)",
        "- [Arguments of every task](#arguments-of-every-task)",
        "- [Arguments of every sensor](#arguments-of-every-sensor)",
    ]
    text += [f"- [{title}](#{title.lower().replace(' ', '-')}): `from {module} import ...`" for module, title in MODULES.items()]
    text += ["", "## Arguments of a DAG", "", "`DAG(dag_id, ...)` and `@dag(...)` take these arguments.", ""]
    text += _declared({"dag_id": str} | DagArguments.__annotations__, meanings.DAG)
    text += ["", "## Arguments of every task", "", "Operators, sensors and `@task(...)` take these arguments.", ""]
    text += _declared(TaskArguments.__annotations__, meanings.TASK)
    text += ["", "## Arguments of every sensor", "", "Sensors and `@task.sensor(...)` also take these arguments.", ""]
    text += _declared(sensor_arguments(), meanings.SENSOR)
    shown: set[int] = set()
    for module, title in MODULES.items():
        text += ["", f"## {title}"]
        for name, thing in public(module):
            if id(thing) not in shown:
                shown.add(id(thing))
                text += ["", f"### `{name}`", "", *_entry(thing)]
    return text


def public(module: str) -> Iterator[tuple[str, Any]]:
    """The names that a module offers to DAG files, with their objects. Those of other modules are in the section of these."""
    loaded = importlib.import_module(module)
    elsewhere = {name for other in MODULES if other not in ("paceline", module) for name in importlib.import_module(other).__all__}
    for name in sorted((name for name in loaded.__all__ if not name.startswith("_")), key=str.lower):
        if module != "paceline" or name not in elsewhere:
            yield name, getattr(loaded, name)


def sensor_arguments() -> dict[str, Any]:
    """The annotations of the arguments that all sensors take beside those of all tasks."""
    declared = importlib.import_module("paceline.sensors").BaseSensorOperator.declared.__annotations__
    return {name: hint for name, hint in declared.items() if name not in TaskArguments.__annotations__}


def arguments(thing: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a class or function beside those that all tasks, sensors or DAGs share."""
    if isinstance(thing, type) and issubclass(thing, AbstractOperator):
        shared = TaskArguments.__annotations__.keys() | (sensor_arguments() if hasattr(thing, "poke") else {})
        names = [name for name in parameters(thing) if name not in shared]
        signatures = [inspect.signature(vars(base)["__init__"]).parameters for base in thing.__mro__ if "__init__" in vars(base)]
        return {
            name: next((found[name] for found in signatures if name in found), None) or _in_table(thing, name) for name in names
        }
    if isinstance(thing, enum.EnumType) or not callable(thing):
        return {}
    try:
        named = inspect.signature(thing).parameters.values()
    except ValueError:  # a built-in type, such as the dict of a context
        return {}
    if getattr(thing, "_is_protocol", False):
        return {}
    hidden = {inspect.Parameter.VAR_KEYWORD} if thing is DAG else set()
    return {parameter.name: parameter for parameter in named if parameter.kind not in hidden and parameter.name != "dag_id"}


def _in_table(kind: type[AbstractOperator], name: str) -> inspect.Parameter:
    """An argument that a class declares in its TypedDict, see paceline/authoring/fields.py."""
    hint = kind.declared.__annotations__[name]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=hint.__metadata__[0].default, annotation=hint)


def _entry(thing: Any) -> Iterator[str]:
    if isinstance(thing, type | ModuleType) or callable(thing):
        yield from (inspect.getdoc(thing) or "").splitlines()
    else:
        yield f"A constant: `{type(thing).__name__}`."
    if isinstance(thing, enum.EnumType):
        yield ""
        values: list[enum.Enum] = list(thing)
        yield ", ".join(f"`{member.value}`" for member in values) + "."
    if own := arguments(thing):
        yield from ("", "| argument | type | default | meaning |", "|---|---|---|---|")
        yield from (_row(parameter, meaning(thing, name)) for name, parameter in own.items())
    if getattr(thing, "__name__", None) in METHODS:
        yield from _methods(thing)
    if isinstance(thing, type) and issubclass(thing, AbstractOperator):
        yield from ("", _also(thing))


def _also(kind: type[AbstractOperator]) -> str:
    sensor = ", [every sensor](#arguments-of-every-sensor)" if hasattr(kind, "poke") else ""
    fields = ", ".join(f"`{field}`" for field in kind.template_fields)
    templates = f" Template fields: {fields}." if fields else ""
    return f"Also takes the arguments of [every task](#arguments-of-every-task){sensor}.{templates}"


def _methods(kind: type) -> Iterator[str]:
    """The methods that DAG files call, and the constants of a class of constants."""
    yield from ("", "| member | meaning |", "|---|---|")
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_") and (inspect.isroutine(member) or name.isupper()) and name not in METHODS[kind.__name__]:
            signature = _signature(member) if inspect.isroutine(member) else ""
            text = " ".join((inspect.getdoc(member) or "").split()) if inspect.isroutine(member) else meanings.OWN[name]
            yield f"| `{name}{signature}` | {text} |".replace("|=", "\\|=")


def _signature(member: Any) -> str:
    named = [
        (f"{parameter.name}" if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}", parameter.kind)
        for parameter in inspect.signature(member).parameters.values()
        if parameter.name != "self"
    ]
    text = ", ".join(f"{STARS.get(kind.name, '')}{name}" for name, kind in named)
    return f"({re.sub(r'<[^>]*>', 'unset', text)})"


def meaning(thing: Any, name: str) -> str:
    """The meaning of an argument: that of argument_meanings for this name, else the sentence of the docstring that names it, else
    that of argument_meanings for all names, or of a base class.

    A sentence that names many arguments is the last choice.
    """
    if text := meanings.OF.get(f"{getattr(thing, '__name__', type(thing).__name__)}.{name}"):
        return text
    own, *bases = thing.__mro__[:-1] if isinstance(thing, type) else (thing,)
    choices = [_sentence(own, name), meanings.OWN.get(name, ""), *(_sentence(base, name) for base in bases)]
    found = [text for text in choices if text]
    return next((text for text in found if text.count("`") < LIST_MARKS), found[0] if found else "")


def _sentence(thing: Any, name: str) -> str:
    """The first sentence of a docstring that names an argument; empty if there is none."""
    sentences = SENTENCE_END.split(" ".join((inspect.getdoc(thing) or "").split()))
    named = re.compile(rf"`{name}\b|\b{name}=")
    return next((sentence.replace("|", "\\|") for sentence in sentences if named.search(sentence)), "")


def _row(parameter: inspect.Parameter, text: str) -> str:
    stars = STARS.get(parameter.kind.name, "")
    default = MISSING if parameter.default is parameter.empty else parameter.default
    is_required = default is MISSING and not stars
    kind = "" if parameter.annotation is parameter.empty else _type(parameter.annotation)
    return f"| `{stars}{parameter.name}` | {kind} | {'required' if is_required else _default(default)} | {text} |"


def _declared(hints: Mapping[str, Any], texts: Mapping[str, str]) -> Iterator[str]:
    yield from ("| argument | type | default | meaning |", "|---|---|---|---|")
    for name, hint in hints.items():
        field = next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Field)), None)
        default = "required" if name in ("dag_id", "task_id") else _default(None if field is None else field.default)
        yield f"| `{name}` | {_type(hint)} | {default} | {texts.get(name, '')} |"


def _type(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    # Only the names of types, and not where they are defined.
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text.replace("typing.Any", "Any"))
    return f"`{text}`".replace("|", "\\|")


def _default(value: Any) -> str:
    if value is MISSING:
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    is_marker = callable(value) or repr(value).startswith("<")  # its text would name an address in memory
    return "unset" if is_marker else f"`{value!r}`".replace("|", "\\|")
